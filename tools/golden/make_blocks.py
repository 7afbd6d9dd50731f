#!/usr/bin/env python3
"""Random blocks of every format of weights, with their numbers by the reference package.

Blocks are random bytes whose f16 scales are finite: some negative, subnormal or zero; of each
format one block has all bits of its codes set. Needs gguf==0.19.0 (PyPI).

    python tools/golden/make_blocks.py tests/data/blocks.safetensors
"""

import json
import pathlib
import struct
import sys

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
          "IQ4_XS": [0]}
SPECIAL = [0.0, -0.0125, 6e-8, 3e-6, -65504.0]


def blocks_of(name, random):
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    count = 24 if elements == 32 else 6
    blocks = random.integers(0, 256, (count, size), dtype=numpy.uint8)
    blocks[1] = 255
    for at in SCALES[name]:
        scales = random.normal(0, 0.01, count).astype(numpy.float16)
        scales[:len(SPECIAL)] = SPECIAL
        blocks[:, at:at + 2] = scales.view(numpy.uint8).reshape(count, 2)
    return blocks


def main():
    random = numpy.random.default_rng(7)
    header, data = {}, b""
    for name in SCALES:
        blocks = blocks_of(name, random)
        values = dequantize(blocks, GGMLQuantizationType[name]).astype("<f4")
        assert numpy.isfinite(values).all()
        for key, kind, array in ((f"{name}.values", "F32", values), (f"{name}.blocks", "U8", blocks)):
            raw = array.tobytes()
            header[key] = {"dtype": kind, "shape": list(array.shape),
                           "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(sys.argv[1]).write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
