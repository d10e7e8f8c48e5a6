"""A language model of a few kilobytes that knows one thing: it calls `finish`.

It is a file that llama.cpp loads like any other. Its weights let each token's score depend on the token alone,
so that under a schema it takes the action whose name begins with the letter it likes most, with empty texts.
"""

import struct
from array import array
from pathlib import Path

_WIDTH = 32
_CONTEXT = 32_768
_UNSIGNED, _SIGNED, _FLOAT, _BOOLEAN, _TEXT, _LIST = 4, 5, 6, 7, 8, 9
_NORMAL_TOKEN, _UNKNOWN_TOKEN, _CONTROL_TOKEN, _BYTE_TOKEN = 1, 2, 3, 6
_LIKES = ('"', "f", "}", ":", ",")
"""What it says when it may, best first."""


def write_tiny_model(path: Path) -> Path:
    """Write the file; the same bytes each time."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [_UNKNOWN_TOKEN, _CONTROL_TOKEN, _CONTROL_TOKEN, *[_BYTE_TOKEN] * 256]
    facts = b"".join(
        (
            _fact("general.architecture", _TEXT, _text("llama")),
            _fact("general.name", _TEXT, _text("tiny")),
            _number("llama.context_length", _CONTEXT),
            _number("llama.embedding_length", _WIDTH),
            _number("llama.block_count", 1),
            _number("llama.feed_forward_length", _WIDTH),
            _number("llama.attention.head_count", 1),
            _number("llama.rope.dimension_count", _WIDTH),
            _fact("llama.attention.layer_norm_rms_epsilon", _FLOAT, struct.pack("<f", 1e-5)),
            _fact("tokenizer.ggml.model", _TEXT, _text("llama")),
            _list("tokenizer.ggml.tokens", _TEXT, [_text(token) for token in tokens]),
            _list("tokenizer.ggml.scores", _FLOAT, [struct.pack("<f", 0.0)] * len(tokens)),
            _list("tokenizer.ggml.token_type", _SIGNED, [struct.pack("<i", kind) for kind in kinds]),
            _number("tokenizer.ggml.bos_token_id", 1),
            _number("tokenizer.ggml.eos_token_id", 2),
            _fact("tokenizer.ggml.add_space_prefix", _BOOLEAN, b"\0"),
        )
    )
    tensors = _tensors(tokens)
    infos, data = b"", b""
    for name, (shape, values) in tensors.items():
        infos += _text(name) + struct.pack("<I", len(shape))
        infos += b"".join(struct.pack("<Q", side) for side in shape) + struct.pack("<IQ", 0, len(data))
        data += _padded(array("f", values).tobytes())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 16) + facts + infos
    path.write_bytes(_padded(head) + data)
    return path


def _tensors(tokens: list[str]) -> dict[str, tuple[tuple[int, ...], list[float]]]:
    """Every token looks the same, nothing is added to it, and the last layer prefers what it prefers."""
    zero = ((_WIDTH, _WIDTH), [0.0] * _WIDTH * _WIDTH)
    ones = ((_WIDTH,), [1.0] * _WIDTH)
    liked = {3 + ord(letter): 2.0 - at / 10 for at, letter in enumerate(_LIKES)}
    liked[2] = 3.0  # the end, where the schema allows it
    bias = [value for at in range(len(tokens)) for value in (liked.get(at, 0.0), *[0.0] * (_WIDTH - 1))]
    looks = [value for _ in tokens for value in (1.0, *[0.0] * (_WIDTH - 1))]
    layer = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return {
        "token_embd.weight": ((_WIDTH, len(tokens)), looks),
        "output_norm.weight": ones,
        "output.weight": ((_WIDTH, len(tokens)), bias),
        "blk.0.attn_norm.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        **{f"blk.0.{name}.weight": zero for name in layer},
    }


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _fact(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _number(key: str, value: int) -> bytes:
    return _fact(key, _UNSIGNED, struct.pack("<I", value))


def _list(key: str, kind: int, items: list[bytes]) -> bytes:
    return _fact(key, _LIST, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)
