"""How inputs are changed: bytes, trees of plain data, and texts."""

from __future__ import annotations

import copy

DEEP = []
for _ in range(2000):
    DEEP = [DEEP]

#: What is put in place of a part of a tree.
VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 7, 100, 2**31, 2**63, 10**30, 0.5, -1.5, 1e308, 5e-324,
    "", "x", "T", "B", "default", "Input", "Out.default", "..", ".", "/", "é", "a" * 500, "*",
    "@type", "__class__", "__dict__", "__init__", "rel", "x * w", "__import__('os')", "1e999",
    [], [[]], [1, 2, 3], ["T", "B", 3], [10**6, 10**6, 10**6], {}, {"default": 0}, DEEP,
    {"@type": "Network"}, {"@type": "NumpyHandler"}, {"@type": "system"}, {"@type": "SgdStepper"},
    {"@type": "Gaussian", "std": -1}, {"@type": "ClipValues"}, {"@type": "StopAfterEpoch"},
    {"@array": "parameters"}, {"@list": "x"}, {"@tuple": 5}, {"@type": []}, float("nan"),
]  # fmt: skip


def changed_bytes(rnd, data):
    """Return the bytes of a file with some of them changed, moved, missing or added."""
    data = bytearray(data)
    for _ in range(rnd.choice([1, 1, 1, 2, 4, 16])):
        i, kind = rnd.randrange(len(data)), rnd.randrange(9)
        if kind == 0:
            data[i] ^= 1 << rnd.randrange(8)
        elif kind == 1:
            data[i] = rnd.choice([0, 1, 127, 128, 255])
        elif kind == 2:
            size = rnd.choice([2, 4, 8])
            top = 2 ** (8 * size)
            number = rnd.choice([0, 1, top - 1, top // 2, rnd.randrange(top), len(data), i])
            data[i : i + size] = (number % top).to_bytes(size, "little")
        elif kind == 3:
            j, size = rnd.randrange(len(data)), rnd.randrange(1, 64)
            data[i : i + size] = data[j : j + size]
        elif kind == 4:
            full = [k for k in range(i, min(i + 400, len(data))) if data[k]]
            data[rnd.choice(full or [i])] = rnd.randrange(256)
        elif kind == 5:  # addresses are multiples of 8 and lie at such
            i, number = i - i % 8, 8 * rnd.randrange(len(data) // 8 + 1)
            data[i : i + 8] = number.to_bytes(8, "little")
        elif kind == 6:
            i, j = (8 * rnd.randrange(len(data) // 8 + 1) for _ in range(2))
            data[i : i + 8] = data[j : j + 8]
        elif kind == 7 and rnd.random() < 0.2:
            del data[i:]
        elif kind == 8 and rnd.random() < 0.2:
            data[i:i] = data[i : i + rnd.randrange(64)]
        if not data:
            return b""
    return bytes(data)


def _places(tree, found):
    """Collect (container, key) of everything in a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        found.append((tree, key))
        if isinstance(value, (dict, list)):
            _places(value, found)
    return found


def changed_tree(rnd, tree):
    """Return plain data with some parts replaced, removed, renamed, added or put elsewhere."""
    if not isinstance(tree, (dict, list)):
        return rnd.choice(VALUES)
    tree = copy.deepcopy(tree)
    for _ in range(rnd.choice([1, 1, 1, 2, 3])):
        places = _places(tree, [])
        if not places:
            return tree
        (container, key), (other, other_key) = rnd.choice(places), rnd.choice(places)
        kind = rnd.randrange(7)
        if kind <= 1:
            container[key] = rnd.choice(VALUES)
        elif kind == 2 and isinstance(container[key], (int, float)):
            container[key] = rnd.choice([-1, 0, 1, 2, 10**4, 10**5, 10**6, 10**9, 2**62, 0.1])
        elif kind == 3:
            container[key] = copy.deepcopy(other[other_key])
        elif kind == 4 and isinstance(container, dict):
            name = rnd.choice([str(other_key), "x", "@type", "size", "name", "rnd", "handler"])
            container[name] = container.pop(key)
        elif kind == 5 and isinstance(container, dict):
            container[rnd.choice([str(other_key), "__class__", "run", "self"])] = rnd.choice(VALUES)
        else:
            del container[key]
        if _is_too_deep(tree):
            return tree
    return tree


def _is_too_deep(tree):
    level = [tree]
    for _ in range(100):
        level = [v for c in level for v in (c.values() if isinstance(c, dict) else c)]
        level = [v for v in level if isinstance(v, (dict, list))]
    return bool(level)


def changed_text(rnd, text, alphabet):
    """Return a text with some letters replaced, removed, added, or parts repeated."""
    letters = list(text)
    for _ in range(rnd.choice([1, 1, 2, 4, 8])):
        i, kind = rnd.randrange(len(letters) + 1), rnd.randrange(4)
        if kind == 0:
            letters[i:i] = rnd.choice(alphabet)
        elif kind == 1:
            del letters[i : i + rnd.randrange(4)]
        elif kind == 2:
            letters[i : i + 1] = rnd.choice(alphabet)
        else:
            letters[i:i] = letters[: rnd.randrange(8)] * rnd.choice([1, 1, 2, 8])
    return "".join(letters)
