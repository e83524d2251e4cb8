"""The examples run, and reach what they promise."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.randomness import global_rnd

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that loads an example, in an empty folder and with other constants."""
    monkeypatch.chdir(tmp_path)
    kept = global_rnd.__getstate__()

    def load_example(name, **constants):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for constant, value in constants.items():
            assert hasattr(module, constant)
            setattr(module, constant, value)
        return module

    yield load_example
    global_rnd.__setstate__(kept)


def test_all_examples_are_tested_here_and_documented():
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {"custom_layer", "digits_cnn", "digits_mlp", "xor"}
    for name in names:
        text = (FOLDER / f"{name}.py").read_text()
        assert f"    python examples/{name}.py\n" in text.split('"""')[1]
        assert text.endswith('if __name__ == "__main__":\n    main()\n')


def test_xor(load, capsys):
    answers = load("xor").main()
    np.testing.assert_array_equal(answers.round(), [0, 1, 1, 0])
    printed = capsys.readouterr().out
    assert "1 xor 0 = 0.9" in printed
    assert "W     float32[4, 2]" in printed


def test_digits_mlp(load, capsys):
    assert load("digits_mlp").main() > 0.95
    assert "longest row of Hidden_1.parameters.W: 2.00" in capsys.readouterr().out


def test_custom_layer(load, capsys):
    assert load("custom_layer").main() > 0.95
    assert "gradients equal central differences" in capsys.readouterr().out


def test_digits_cnn(load, tmp_path):
    accuracy = load("digits_cnn", EPOCHS=2).main()
    assert accuracy > 0.8
    output = tmp_path / "output"
    assert (output / "digits_cnn.png").read_bytes().startswith(b"\x89PNG")
    logs = json.loads((output / "digits_cnn_logs.json").read_text())
    assert len(logs["validation"]["Accuracy"]) == 3
    assert bs.Network.from_hdf5(output / "digits_cnn.hdf5").output_name is not None
