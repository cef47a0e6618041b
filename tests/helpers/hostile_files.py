"""Posterior files with something wrong in them: words, numbers, arrays or bytes changed at random, by seed."""

import copy
import io
import json
import zipfile

import numpy as np

WORDS = (
    None,
    True,
    -1,
    0,
    10**9,
    10**30,
    1e308,
    float("nan"),
    "",
    "x",
    [],
    [[]],
    {},
    {"kind": "Normal"},
    [10**9],
    [-1],
)
DEEP = '{"a":' * 5000 + "1" + "}" * 5000


def hostile_files(content: bytes, count: int, seed: int):
    """Yield ``count`` changed versions of a posterior file, each with a name for the change."""
    header, arrays = _parts(content)
    kinds = (_other_word, _lost_word, _other_array, _other_bytes, _other_npy)
    for case in range(count):
        rng = np.random.default_rng([seed, case])
        change = kinds[case % len(kinds)]
        yield f"{change.__name__[1:]} {case}", change(rng, content, copy.deepcopy(header), dict(arrays))


def declared(content: bytes, **shapes) -> bytes:
    """The file with other shapes of its parameters' priors, by name: sizes that its arrays do not have."""
    header, arrays = _parts(content)
    for parameter in header["model"]["parameters"]:
        if parameter["name"] in shapes:
            parameter["prior"]["shape"] = shapes[parameter["name"]]
    return _joined(header, arrays)


def _parts(content):
    with np.load(io.BytesIO(content)) as held:
        arrays = dict(held)
    return json.loads(arrays.pop("header").tobytes()), arrays


def _joined(header, arrays):
    buffer = io.BytesIO()
    words = header if isinstance(header, bytes) else json.dumps(header).encode()
    np.savez(buffer, header=np.frombuffer(words, dtype=np.uint8), **arrays)
    return buffer.getvalue()


def _places(tree, path=()):
    """Paths to all values of a tree of dicts and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _holder(header, rng):
    places = list(_places(header))
    *path, last = places[rng.integers(len(places))]
    held = header
    for key in path:
        held = held[key]
    return held, last


def _other_word(rng, _, header, arrays):
    if rng.random() < 0.05:
        return _joined(DEEP.encode(), arrays)
    held, last = _holder(header, rng)
    held[last] = WORDS[rng.integers(len(WORDS))]
    return _joined(header, arrays)


def _lost_word(rng, _, header, arrays):
    held, last = _holder(header, rng)
    if rng.random() < 0.5:
        del held[last]
    elif isinstance(held, dict):
        held[f"{last}2"] = held.pop(last)
    else:
        held.append(held[last])
    return _joined(header, arrays)


def _other_array(rng, _, header, arrays):
    name = list(arrays)[rng.integers(len(arrays))]
    old = arrays[name]
    others = (
        lambda: old[..., :-1],
        lambda: np.full(old.shape, np.nan),
        lambda: np.full(old.shape, 1e308),
        lambda: np.zeros(old.shape),
        lambda: -np.abs(old),
        lambda: old[None],
        lambda: np.array(["text"] * max(len(old), 1)) if old.ndim else np.array("text"),
        lambda: old.astype(np.complex128),
        lambda: np.zeros(0),
        lambda: np.float64(3.0),
        lambda: np.zeros(3, dtype=[("a", "f8"), ("b", "i4")]),
        lambda: np.zeros((0, 10**6)),
    )
    return _joined(header, arrays | {name: others[rng.integers(len(others))]()})


def _other_bytes(rng, content, *_):
    changed = bytearray(content)
    how = rng.integers(3)
    if how == 0:
        for at in rng.integers(len(changed), size=rng.integers(1, 9)):
            changed[at] ^= 1 << rng.integers(8)
    elif how == 1:
        del changed[rng.integers(len(changed)) :]
    else:
        start = rng.integers(len(changed))
        changed[start : start + 200] = rng.bytes(200)
    return bytes(changed)


def _other_npy(rng, _, header, arrays):
    """Change the text in which an array states its dtype and shape; the checksums are right."""
    texts = (
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 10000000000000000000000000), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (9,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': ('<f8', (3, 1000000000)), 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f8', 'fortran_order': 7, 'shape': 3, }",
        "[" * 100 + "]" * 100,
        "(" * 3000,
        "__import__('os').mkdir('hacked')",
    )
    text = texts[rng.integers(len(texts))].encode() + b"\n"
    victim, buffer = list(arrays)[rng.integers(len(arrays))], io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays}.items():
            part = io.BytesIO()
            np.save(part, array)
            whole = part.getvalue()
            if name == victim:
                whole = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes()
            archive.writestr(f"{name}.npy", whole)
    return buffer.getvalue()
