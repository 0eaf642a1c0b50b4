"""What can happen to a file, drawn at random: the disk's doing, an editor's, another program's."""

import json
import re
from random import Random

WHOLE = [b"", b" ", b"null", b"[]", b"{}", b"3", b'"a"', b"true", b"NaN", b"\xff\xfe{", b"\xef\xbb\xbf{}", b"\0" * 99]
WHOLE += [b"[" * 10**5, b'{"a":' * 10**4, b"[" * 300 + b"]" * 300, b"9" * 5000, b'[{"a": 1, "a": 2}]', b'"\\ud800"']
ODD = ["null", "[]", "{}", "[[[]]]", "0", "-1", "7", "1.5", "1e999", "-1e999", "NaN", "Infinity", "1" + "0" * 400]
ODD += ["9" * 5000, "true", '"a"', '""', '"\\u0000"', '"\\ud800"', '"../../a"', '{"a": 1, "a": 2}', "[" * 40 + "]" * 40]
ODD += ["[" * 3000 + "]" * 3000, "9223372036854775807", "9223372036854775808", '"' + "a" * 999 + '"', "[1, null, {}]"]
MARK = "\N{SNOWMAN}"


def spoilt(content: bytes, kind: str, draw: Random) -> bytes:
    """kind: of the file, by the end of its name."""
    ways = [cut, flip, flip, replaced, OF_KIND[kind], OF_KIND[kind], OF_KIND[kind]]
    return draw.choice(ways)(content, draw)


def cut(content: bytes, draw: Random) -> bytes:
    return content[: draw.randrange(len(content))]


def flip(content: bytes, draw: Random) -> bytes:
    """Some bits, most often in the first kilobyte, where the headers are."""
    found = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 9])):
        found[draw.randrange(min(len(found), draw.choice([16, 1000, 10**9])))] ^= 1 << draw.randrange(8)
    return bytes(found)


def replaced(content: bytes, draw: Random) -> bytes:
    return draw.choice(WHOLE)


def exchanged(content: bytes, draw: Random) -> bytes:
    """In a JSON document one value is another, or gone, or there twice."""
    document = json.loads(content)
    parent, key = draw.choice(list(places(document)))
    value, how = parent[key], draw.randrange(8)
    if how == 0:
        del parent[key]
    elif how == 1 and isinstance(parent, dict):
        parent[MARK] = value
        return json.dumps(document, ensure_ascii=False).replace(MARK, key).encode()
    else:
        parent[key] = MARK
    return json.dumps(document, ensure_ascii=False).replace(f'"{MARK}"', draw.choice(ODD)).encode()


def places(value):
    """Of all parts of a document: what holds each, and its name or number there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield value, key
        yield from places(part)


def exchanged_line(content: bytes, draw: Random) -> bytes:
    """Of one JSON document a line."""
    lines = content.splitlines()
    i = draw.randrange(len(lines))
    lines[i] = draw.choice([exchanged, replaced, cut])(lines[i], draw)
    return b"\n".join(lines) + b"\n"


def exchanged_setting(content: bytes, draw: Random) -> bytes:
    """Of TOML."""
    lines = content.decode().splitlines()
    i = draw.randrange(len(lines))
    odd = draw.choice([*ODD, "inf", "nan", "0x" + "f" * 9999, "1979-05-27", "{a = 1}", '"9' + "9" * 400 + '"', '"1T"'])
    lines[i] = draw.choice([re.sub("= .*", lambda _: f"= {odd}", lines[i]), "", f"a.b = {odd}", lines[i - 1]])
    return "\n".join(lines).encode()


def exchanged_header(content: bytes, draw: Random) -> bytes:
    """Of safetensors: the lengths still fit, so that what is wrong is the header itself."""
    size = int.from_bytes(content[:8], "little")
    header = exchanged(content[8 : 8 + size], draw)
    if draw.randrange(3) == 0:
        dtypes = ["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "I16", "U16", "F16", "BF16", "I32", "U32"]
        dtypes += ["F32", "F64", "I64", "U64", "C64"]
        header = re.sub(rb'"dtype": ?"\w+"', f'"dtype":"{draw.choice(dtypes)}"'.encode(), header)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


OF_KIND = {
    "json": exchanged,
    "jsonl": exchanged_line,
    "toml": exchanged_setting,
    "safetensors": exchanged_header,
}
