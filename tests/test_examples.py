"""The examples run, and reach what they promise."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

import brainstorm as bs

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that loads an example, in an empty folder and with other constants."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)  # as for a script that is run there

    def load_example(name, **constants):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for constant, value in constants.items():
            assert hasattr(module, constant)
            setattr(module, constant, value)
        return module

    return load_example


#: Example to other constants, what holds of its result, and what it prints.
PROMISES = {
    "custom_layer": ({"EPOCHS": 10}, lambda x: x > 0.95, "gradients equal central differences"),
    "digits_mlp": ({}, lambda x: x > 0.95, "longest row of Hidden_1.parameters.W: 2.00"),
    "exchange_weights": ({}, lambda x: x > 0, "no layer for: ['unrelated.weight']"),
    "expression_layer": ({}, lambda x: x > 0.95, "backward pass: ['tanh_1', 'sig_2']"),
    "gestures": ({"EPOCHS": 6}, lambda x: x > 0.95, "a new "),
    "grid_search": ({"EPOCHS": 10, "SPECS": ["F10", "F20 D0.2"]}, lambda x: x > 0.9, ""),
    "lbfgs": ({"PASSES": 200, "STEPS": 5}, lambda x: x[0] < 0.1 * x[1], ""),
    "mpi_digits": ({"EPOCHS": 3}, lambda x: x["validation.Accuracy"][-1] > 0.7, ""),
    "onnx_models": ({"EPOCHS": 2}, lambda x: x[0] < 1e-5 < 0.8 < x[1] < x[2], "'Transpose': 2"),
    "optuna_search": (
        {"TRIALS": 3, "EPOCHS": 2},
        lambda x: x[0] < 1.5 and set(x[1]) == {"size", "learning_rate"},
        "",
    ),
    "unet": (
        {"TRAINING": 300, "HELD_OUT": 50, "EPOCHS": 4},
        lambda x: x > 0.5,
        "intersection over union: ",
    ),
}
OTHERS = "char_lstm char_transformer digits_cnn number_words resume xor"


def test_all_examples_are_tested_here_and_documented():
    names = {path.stem for path in FOLDER.glob("*.py")} - {"char_text"}  # imported by two others
    assert names == PROMISES.keys() | set(OTHERS.split())
    for name in names:
        text = (FOLDER / f"{name}.py").read_text()
        assert f"    python examples/{name}.py\n" in text.split('"""')[1]
        assert re.search(r'if __name__ == "__main__":\n    main\(.*\)\n$', text)


@pytest.mark.parametrize("name", PROMISES)
def test_an_example_reaches_what_it_promises(load, name, tmp_path, capsys):
    constants, holds, said = PROMISES[name]
    example = load(name, **constants)
    found = example.main()
    assert holds(found), found
    printed = capsys.readouterr().out
    assert said in printed
    for gesture in example.NAMES if name == "gestures" else ():
        assert re.search(rf"a new {gesture}: \d\.\d\d {gesture}", printed)
    if name == "unet":
        assert (tmp_path / "output" / "unet.png").read_bytes().startswith(b"\x89PNG")


def test_xor(load, capsys):
    answers = load("xor").main()
    np.testing.assert_array_equal(answers.round(), [0, 1, 1, 0])
    printed = capsys.readouterr().out
    assert "1 xor 0 = 0.9" in printed
    assert "W        (4, 2)     float32[4, 2]     32 B" in printed


def test_digits_cnn(load, tmp_path):
    accuracy = load("digits_cnn", EPOCHS=2).main()
    assert accuracy > 0.8
    output = tmp_path / "output"
    assert (output / "digits_cnn.png").read_bytes().startswith(b"\x89PNG")
    logs = json.loads((output / "digits_cnn_logs.json").read_text())
    assert len(logs["validation"]["Accuracy"]) == 3
    assert bs.Network.from_hdf5(output / "digits_cnn.hdf5").output_name is not None


def test_char_text(load):
    text = load("char_text")
    training, held_out = text.load_text(20_000)
    assert (training.size, held_out.size) == (18_000, 2_000)
    assert text.decode(text.encode("two\nlines\t|~ \xe4\x7f")) == "two\nlines   |~ ??"
    source = '"""One."""\nclass A:\n    """Two."""\n    def f():\n        """Three."""\n    x = ""'
    assert list(text.docstrings(source)) == ["One.", "Two.", "Three."]

    n = len(text.CHARACTERS)
    codes = text.encode("abcabcabdabc")
    by_hand = -np.log2((3 + 0.01) / (4 + 0.01 * n))
    assert text.baseline_bits(codes, text.encode("abc")) == pytest.approx(by_hand)
    assert text.baseline_bits(codes, text.encode("xyz")) == pytest.approx(np.log2(n))

    score = text.BitsPerCharacter()(np.array([[1.0], [0.0]]), np.array([[0.5, 0.5], [0.25, 0.75]]))
    assert score == pytest.approx(1 + 2)


SMALL = {"TEXT_SIZE": 20_000, "STEPS": 15, "EPOCHS": 2, "LEARNING_RATE": 0.01, "SAMPLE_SIZE": 40}


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("char_lstm", {"SIZE": 16, "STREAMS": 8}),
        ("char_transformer",
         {"SIZE": 16, "HEADS": 2, "WINDOWS": 8, "EPOCH_LENGTH": 50, "WARMUP": 10}),
    ],
)  # fmt: skip
def test_character_models(load, capsys, name, constants):
    bits, sample = load(name, **SMALL, **constants).main()
    assert len(bits) == 3
    assert bits[0] > bits[1] > bits[2]
    assert bits[2] < 4.6 < 6 < bits[0]
    printed = capsys.readouterr().out
    assert f"{bits[2]:.3f} by the network" in printed
    assert f"Return the {sample}\n" in printed
    assert len(sample) == 40


def test_number_words(load, capsys):
    small = {"LARGEST": 9999, "TRAINING": 1500, "HELD_OUT": 60, "SIZE": 32, "BATCH": 25}
    example = load("number_words", **small)
    assert example.in_words(0) == ["zero"]
    assert " ".join(example.in_words(40_072)) == "forty thousand seventy two"
    words = example.in_words(777_777)
    assert (len(words), words.count("thousand")) == (example.MOST_WORDS, 1)
    right = example.main()
    assert right > 0.25
    assert f"{right:.1%} of 60 held-out numbers" in capsys.readouterr().out


def test_resume(load, capsys):
    assert load("resume", EPOCHS=3).main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "ended after 45 updates: received SIGINT"
    assert printed[1] == "ended after 54 updates: reached max_epochs=3"
    assert printed[2].split()[3:] == printed[3].split()[1:]


def test_the_notebook_computes_by_hand_what_the_network_does():
    cells = json.loads((FOLDER / "look_inside.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code)  # the documentation has them
    found = {"__name__": "notebook"}
    with np.printoptions():  # which it changes
        for cell in code:
            exec("".join(line for line in cell["source"] if line[0] != "%"), found)
    assert all(found[name] for name in ("forward", "backward", "step"))
    assert found["slope"] == pytest.approx(found["grad_w"][0, 0], rel=1e-6)
    np.testing.assert_allclose(
        found["net"].predict(found["corners"]), [found["targets"][0]], atol=0.1
    )
