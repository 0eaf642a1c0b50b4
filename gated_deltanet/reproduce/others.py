"""What others measured since of the paper's claims, as far as we know of it."""

OTHERS = {
    "table1": "Mamba's window of learning rates is narrow in MQAR, DeltaNet's wide (arXiv 2508.19029).",
    "table2": (
        "Two later papers ran Gated DeltaNet and Mamba2 again on S-NIAH (percent at 1K / 2K / 4K / 8K). "
        "Gated DeltaNet-2 (arXiv 2605.22791): S-NIAH-1 100/100/100/98 and 100/100/97/56, S-NIAH-2 100/100/87/32 and "
        "100/100/63/21, S-NIAH-3 90/54/61 and 59/39/14. M²RNN: 100/100/100/100 and 100/91/59/19, 100/57/40/4 and "
        "95/14/9/2, 96/86/43/15 and 42/14/4/2. Both confirm that Mamba2 forgets in S-NIAH-1; neither that Gated "
        "DeltaNet does."
    ),
    "table3": (
        "Gated DeltaNet-2 (arXiv 2605.22791) ran both again: WikiText perplexity 16.40 for Gated DeltaNet, 16.79 for "
        "Mamba2 (the paper: 16.42, 16.56). Mamba-3: 16.61 and 16.76 with 180 M parameters, 13.12 and 13.00 with "
        "440 M, 11.39 and 11.35 with more. Q-Delta (arXiv 2606.08804), mean accuracy of Mamba2, DeltaNet and Gated "
        "DeltaNet: 46.27, 43.82, 46.01 with 340 M, 52.46, 52.53, 52.77 with 1.3 B. The gap is at most 2.5 % and "
        "changes its sign."
    ),
    "tracking": (
        "DeltaProduct's setting (two layers, trained on 64 tokens, tested on 512, three seeds): Gated DeltaNet with "
        "β < 1 0.586 in parity and 0.209 in S3, with β < 2 0.987 and 0.542 (0.28 to 0.83); two steps a token, β < 2: "
        "0.912 in S3."
    ),
}
