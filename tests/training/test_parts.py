import numpy as np
import pytest

from brainstorm.training.parts import combine_parts, own_slice, take_part


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 6, 12])
def test_slices_are_everything_in_order_and_alike(count, size):
    slices = [own_slice(count, rank, size) for rank in range(size)]
    indices = [list(range(count))[s] for s in slices]
    assert [i for part in indices for i in part] == list(range(count))
    lengths = [len(i) for i in indices]
    assert sorted(lengths, reverse=True) == lengths
    assert lengths[0] - lengths[-1] <= 1


def part(rank, sequences, is_idle=False):
    carried = np.full((1, sequences, 2), rank, np.float32)
    return {
        "data": {
            "iterators": {"training_data_iter": {"rnd": "same"}},
            "epoch": {
                "begin": {"rnd": "before"},
                "given": 4,
                "scores": {"loss": np.array([[sequences, rank + 0.5]])},
                "carried": [None, carried],
                "is_idle": is_idle,
            },
        },
        "accumulation": {"given": 1, "sequences": sequences, "total": np.array([1.0, rank])},
        "generators": {"network": rank},
        "persistent": {"Hits.internals.total": np.array([1.0]), "Norm.mean": np.array([rank])},
    }


STATISTICS = ["Hits.internals.total"]


def test_the_whole_of_several_parts():
    parts = [part(0, 3), part(1, 2), part(2, 1, is_idle=True)]
    whole = combine_parts(parts, STATISTICS)
    assert whole["generators"] == {"network": 0}
    assert whole["accumulation"]["total"].tolist() == [3, 3]
    assert (whole["accumulation"]["given"], whole["accumulation"]["sequences"]) == (1, 6)
    np.testing.assert_array_equal(whole["persistent"]["Hits.internals.total"], [3])
    np.testing.assert_array_equal(whole["persistent"]["Norm.mean"], [1])
    epoch = whole["data"]["epoch"]
    assert (epoch["given"], epoch["is_idle"]) == (4, False)
    assert epoch["scores"]["loss"].tolist() == [[3, 0.5], [2, 1.5], [1, 2.5]]
    assert epoch["carried"][0] is None
    assert epoch["carried"][1][0, :, 0].tolist() == [0, 0, 0, 1, 1]
    assert parts[0]["data"]["epoch"]["carried"][1].shape == (1, 3, 2)  # left as it was


def test_a_single_part_is_the_whole_and_between_two_epochs_there_is_nothing_to_put_together():
    parts = [part(0, 3), part(1, 2)]
    assert combine_parts(parts[:1], STATISTICS) is parts[0]
    for each in parts:
        each["data"]["epoch"] = each["accumulation"] = None
    whole = combine_parts(parts, STATISTICS)
    assert whole["accumulation"] is whole["data"]["epoch"] is None
    assert take_part(whole["data"], 1, 2) == whole["data"]


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_new_parts_of_a_whole_are_that_whole(size):
    data = combine_parts([part(0, 3), part(1, 2)], STATISTICS)["data"]
    taken = [take_part(data, rank, size) for rank in range(size)]
    carried = np.concatenate([t["epoch"]["carried"][1] for t in taken[:5]], axis=1)
    np.testing.assert_array_equal(carried, data["epoch"]["carried"][1])
    for idle in taken[5:]:  # stands for none
        np.testing.assert_array_equal(idle["epoch"]["carried"][1], np.zeros((1, 1, 2)))
    pairs = [t["epoch"]["scores"]["loss"].tolist() for t in taken]
    assert pairs == [[[3, 0.5], [2, 1.5]], *[[]] * (size - 1)]
    assert all(t["iterators"] == data["iterators"] for t in taken)
