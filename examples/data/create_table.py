"""Convert a table in CSV to an HDF5 file: columns of numbers or words, and a column to predict.

    python examples/data/create_table.py flowers.csv kind classification flowers.hdf5
    python examples/data/create_table.py power.csv watts regression power.hdf5

The first line contains the names of the columns. In a column of numbers, empty cells are replaced
by the mean of the column. A column without numbers is one-hot encoded. The rows are shuffled with a
fixed seed and divided into training, validation and test: 80 %, 10 % and 10 %. To train with the
file:

    training = Minibatches(20, **load_data("flowers.hdf5", "training"))
    training = Normalize(training, load_data("flowers.hdf5", "statistics"))

`statistics` contains means and standard deviations over the training rows; for a regression also
those of the targets, to scale predictions back. The script prints the names of the columns, and of
the classes in the order of their numbers.
"""

import csv
import math

import numpy as np
from splits import name_parts, run

from brainstorm.data_iterators import Undivided, channel_statistics, save_data
from brainstorm.errors import FileFormatError, unknown
from brainstorm.tools import shuffle_data

TASKS = ("classification", "regression")
MOST_WORDS = 50


def read_table(filename, target):
    """Return the names of the columns without the target, and a dictionary for each row."""
    with open(filename, newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file, skipinitialspace=True)
        names, rows = table.fieldnames or [], list(table)
    if target not in names:
        raise FileFormatError(f"{filename}: {unknown('column', target, names)}")
    if len({*names, ""}) <= len(names):
        raise FileFormatError(
            f"{filename}: expected a name of its own for each column, got {names}"
        )
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise FileFormatError(f"{filename}, row {number}: expected {len(names)} cells")
    if len(rows) < 10:
        raise FileFormatError(f"{filename}: expected at least 10 rows, got {len(rows)}")
    return [name for name in names if name != target], rows


def read_numbers(filename, rows, column):
    """Return the numbers in a column (N,), NaN for empty cells."""
    numbers = []
    for number, row in enumerate(rows, 1):
        try:
            numbers.append(float(row[column].strip() or "nan"))
        except ValueError:
            numbers.append(math.inf)
        if math.isinf(numbers[-1]):
            raise FileFormatError(
                f"{filename}, row {number}, column {column!r}: expected a number or nothing, got "
                f"{row[column]!r}"
            )
    if np.isnan(numbers).all():
        raise FileFormatError(f"{filename}, column {column!r}: expected numbers, got empty cells")
    return np.array(numbers)


def read_column(filename, rows, column):
    """Return the names of what a column becomes, and their numbers (N, names)."""
    cells = [row[column].strip() for row in rows]
    words = sorted(set(cells) - {""})
    if not words or any(map(is_number, words)):
        return [column], read_numbers(filename, rows, column)[:, None]
    if len(words) > MOST_WORDS:
        raise FileFormatError(
            f"{filename}, column {column!r}: expected numbers, or at most {MOST_WORDS} different "
            f"words, got {len(words)}. Leave the column out."
        )
    names = [f"{column}={word}" for word in words]
    return names, np.array([[cell == word for word in words] for cell in cells], float)


def is_number(text):
    """Return whether a text is one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_targets(filename, rows, target, task):
    """Return the targets (N, 1), and the names of the classes."""
    if task not in TASKS:
        raise FileFormatError(unknown("task", task, TASKS))
    for number, row in enumerate(rows, 1):
        if not row[target].strip():
            raise FileFormatError(f"{filename}, row {number}, column {target!r}: expected a value")
    if task == "regression":
        return read_numbers(filename, rows, target)[:, None], []
    classes = sorted({row[target].strip() for row in rows})
    return np.array([[classes.index(row[target].strip())] for row in rows]), classes


def main(table, target, task, filename):
    columns, rows = read_table(table, target)
    found = [read_column(table, rows, column) for column in columns]
    columns = [name for names, _ in found for name in names]
    numbers = np.concatenate([values for _, values in found], axis=1)
    targets, classes = read_targets(table, rows, target, task)
    numbers, targets = shuffle_data(numbers[None], targets[None], seed=0)

    parts = name_parts(len(rows))
    means = np.nan_to_num(np.nanmean(numbers[:, parts["training"]], axis=1))
    numbers = np.where(np.isnan(numbers), means, numbers)
    data = {
        name: {"default": numbers[:, part], "targets": targets[:, part]}
        for name, part in parts.items()
    }
    scaled = ("default",) if classes else ("default", "targets")
    statistics = {
        name: (mean, [deviation or 1.0 for deviation in deviations])  # constant columns
        for name, (mean, deviations) in channel_statistics(
            Undivided(**data["training"]), *scaled
        ).items()
    }
    save_data(filename, {**data, "statistics": statistics})
    print(f"{filename}: {len(rows)} rows, columns {', '.join(columns)}")
    if classes:
        print(f"classes: {', '.join(classes)}")


if __name__ == "__main__":
    run(main, __doc__)
