"""Print whether the installation has native kernels: pip shows what the build says only when it fails or with -v."""

from gated_deltanet.ops import native

if __name__ == "__main__":
    print(f"native kernels: {native.instruction_set() or f'none. {native.unusable()}; everything else works without'}")
