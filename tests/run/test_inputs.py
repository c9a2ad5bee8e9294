"""Tensors from words: what each form gives, and how each wrong one is refused."""

import os
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npusim import Tensor, TensorSpec
from npusim.run.inputs import FileError, InputError, parse

DTYPES = (
    "float32, float16, bfloat16, int4, int8, uint8, int32, int64, uint64, int16, uint16, uint32"
)
LAST = "layout=..., transposed=... and no more"
KINDS = "FILE.npy, randn, rand, randint, zeros, ones, full, arange, values, spec, none"


def same(found: object, expected: np.ndarray) -> None:
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


def refused(text: str, message: str, error: type[Exception] = InputError) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        parse(text)


# ---- generators ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zeros:2x3", np.zeros((2, 3), np.float32)),
        ("ones:3:int4", np.ones(3, ml_dtypes.int4)),
        ("ones:scalar:float", np.float32(1).reshape(())),
        ("full:2:bfloat16:value=0.5", np.full(2, 0.5, ml_dtypes.bfloat16)),
        ("full:2:half:value=1e9", np.full(2, np.inf, np.float16)),
        ("full:1:value=nan", np.full(1, np.nan, np.float32)),
        ("full:2:int64:value=-5", np.full(2, -5)),
        ("arange:2x3:int32", np.arange(6, dtype=np.int32).reshape(2, 3)),
        ("arange:256:uint8", np.arange(256).astype(np.uint8)),
        ("values:3:int64:of=2,-5,7", np.array([2, -5, 7])),
        ("values:2x2:float16:of=1,2,3,4", np.array([[1, 2], [3, 4]], np.float16)),
        ("zeros:0x3:int8", np.zeros((0, 3), np.int8)),
        ("arange:0:int4", np.zeros(0, ml_dtypes.int4)),
    ],
)
def test_generators_fill_a_shape(text: str, expected: np.ndarray) -> None:
    same(parse(text), expected)


def test_random_numbers_are_numpys_for_a_seed() -> None:
    normal = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    same(parse("randn:2x3"), normal)
    same(parse("randn:2x3:seed=0"), normal)
    same(parse("randn:2x3:bfloat16"), normal.astype(ml_dtypes.bfloat16))
    uniform = np.random.default_rng(7).random(4, np.float32)
    same(parse("rand:4:float16:seed=7"), uniform.astype(np.float16))
    whole = np.random.default_rng(2).integers(-8, 8, 5)
    same(parse("randint:5:int4:seed=2:low=-8:high=8"), whole.astype(ml_dtypes.int4))
    same(parse("randint:5:low=-8:high=8:seed=2"), whole.astype(np.float32))


def test_random_whole_numbers_reach_the_ends_of_every_type() -> None:
    for dtype, low, high in [("int8", -128, 128), ("uint64", 0, 2**64), ("int64", -(2**63), 2**63)]:
        found = parse(f"randint:100:{dtype}:low={low}:high={high}")
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.dtype(dtype)


def test_a_spec_has_no_values() -> None:
    assert parse("spec:8192x8192:float16") == TensorSpec((8192, 8192), "float16")
    assert parse("spec:99999999x99999999") == TensorSpec((99999999, 99999999), "float32")
    assert parse("none") is None


# ---- layouts ----


def test_a_spec_says_how_it_lies() -> None:
    assert parse("spec:8x16:int8:layout=FRACTAL_NZ") == TensorSpec((8, 16), "int8", "FRACTAL_NZ")
    assert parse("spec:8x16:transposed=true") == TensorSpec((8, 16), "float32", transposed=True)
    assert parse("spec:8x16:int8:transposed=true:layout=FRACTAL_NZ") == TensorSpec(
        (8, 16), "int8", "FRACTAL_NZ", True
    )
    assert parse("spec:8:layout=ND:transposed=false") == TensorSpec((8,), "float32")


def test_a_transposed_array_has_the_same_elements_transposed() -> None:
    found = parse("arange:2x3x4:int8:transposed=true")
    same(found, np.arange(24, dtype=np.int8).reshape(2, 3, 4))
    assert isinstance(found, np.ndarray)
    assert found.swapaxes(-1, -2).flags.c_contiguous


@pytest.mark.parametrize(("words", "turned"), [("", False), (":transposed=true", True)])
def test_an_array_in_fractals_is_a_tensor(words: str, turned: bool) -> None:
    found = parse(f"arange:17x40:int32:layout=FRACTAL_NZ{words}")
    assert isinstance(found, Tensor)
    assert found.spec == TensorSpec((17, 40), "int32", "FRACTAL_NZ", turned)
    same(np.asarray(found), np.arange(680, dtype=np.int32).reshape(17, 40))


# ---- wrong words ----


def test_refusals_of_words_say_what_must_hold(subtests: pytest.Subtests) -> None:
    for text, message in [
        ("rando:3", f"a value must begin with one of {KINDS}, not 'rando:3'; did you mean rand?"),
        (
            "x.npz",
            f"a value must begin with one of {KINDS}, not 'x.npz'; for example randn:8x16:float16",
        ),
        (
            "4x4:float16",
            "a value must begin with where its elements come from, not '4x4:float16', a shape "
            "alone; write spec:4x4:float16 for the time only, or randn:4x4:float16",
        ),
        ("zeros:3:int9", f"a dtype must be one of {DTYPES}, not 'int9'; did you mean int8?"),
        ("spec:3:zzz", f"a dtype must be one of {DTYPES}, not 'zzz'; use one of these"),
        ("randn:3:seed=x", "seed must be a whole number >= 0, not 'x'; write for example seed=8"),
        ("rand:3:seed=-1", "seed must be a whole number >= 0, not '-1'; write for example seed=8"),
        (
            "randn:3:sed=1",
            f"randn must be followed by a shape, a dtype, seed=..., {LAST}, "
            "not 'sed=1'; correct it",
        ),
        (
            "randn:3:float32:seed=1:seed=2",
            f"randn must be followed by a shape, a dtype, seed=..., {LAST}, "
            "not 'seed=2'; correct it",
        ),
        (
            "zeros:3:int8:int8",
            f"zeros must be followed by a shape, a dtype, {LAST}, not 'int8'; correct it",
        ),
        (
            "spec:3:seed=1",
            f"spec must be followed by a shape, a dtype, {LAST}, not 'seed=1'; correct it",
        ),
        ("spec:8x8:layout=NZ", "layout must be ND or FRACTAL_NZ, not 'NZ'; use one of these"),
        (
            "ones:8x8:transposed=yes",
            "transposed must be false or true, not 'yes'; use one of these",
        ),
        (
            "ones:8:layout=FRACTAL_NZ",
            "ones must have at least two dimensions to be transposed or in FRACTAL_NZ, "
            "not shape (8,); write for example ones:8x16",
        ),
        (
            "spec:scalar:transposed=true",
            "spec must have at least two dimensions to be transposed or in FRACTAL_NZ, "
            "not shape (); write for example spec:8x16",
        ),
        ("randn:3:int8", "randn must have a dtype of floats, not int8; use randint"),
        ("rand:3:uint8", "rand must have a dtype of floats, not uint8; use randint"),
        ("randint:3", "randint must say high=..., which it stays below; add it"),
        ("randint:3:low=5:high=5", "high must be above low = 5, not 5; raise it"),
        (
            "randint:3:low=1.5:high=5",
            "low must be a whole number, not '1.5'; write for example low=8",
        ),
        (
            "randint:3:int8:high=300",
            "low to high - 1 must lie in [-128, 127] for int8, not 0 to 299; "
            "choose another dtype, or other values",
        ),
        (
            "randint:3:uint64:low=-1:high=3",
            "low to high - 1 must lie in [0, 18446744073709551615] for uint64, not -1 to 2; "
            "choose another dtype, or other values",
        ),
        ("full:3", "full must say value=..., which it repeats; add it"),
        (
            "full:3:value=1e400",
            "value must be at most 1.79769e+308, not 1e400; write a smaller one, or value=inf",
        ),
        ("full:3:value=x", "value must be a number, not 'x'; write for example value=3"),
        (
            "full:3:int8:value=3.5",
            "value must be a whole number, not '3.5'; write for example value=8",
        ),
        (
            "full:3:int4:value=8",
            "value must lie in [-8, 7] for int4, not 8; choose another dtype, or other values",
        ),
        (
            "arange:300:int8",
            "arange's numbers must lie in [-128, 127] for int8, not 0 to 299; "
            "choose another dtype, or other values",
        ),
        (
            "ones",
            "ones must have a shape of sizes joined by x, not ''; "
            "write for example ones:8x16, or ones:scalar",
        ),
        (
            "values:2:int8:of=1,200",
            "values must lie in [-128, 127] for int8, not 1 to 200; choose another dtype, or "
            "other values",
        ),
        (
            "randn:1048576x1048576:float16",
            "randn must make at most 1099511627776 bytes, not 2199023255552; "
            "use spec:1048576x1048576:float16 to ask for time only",
        ),
        (
            "zeros:0x999999999999999999:int8",
            "zeros must make at most 1099511627776 bytes, not 999999999999999999; "
            "use spec:0x999999999999999999:int8 to ask for time only",
        ),
    ]:
        with subtests.test(text):
            refused(text, f"inputs: {message}")


@pytest.mark.parametrize("shape", ["8x-1", "8xq", "", "x", "8x", "1.5", "-3", "8 x 8", "9" * 19])
def test_a_shape_is_sizes_joined_by_x(shape: str) -> None:
    refused(
        f"randn:{shape}",
        f"inputs: randn must have a shape of sizes joined by x, not {shape!r}; "
        f"write for example randn:8x16, or randn:scalar",
    )


# ---- files ----


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.int8(4), np.zeros((0, 2))])
def test_a_file_gives_the_array_that_was_saved(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)

    same(parse(str(tmp_path / "x.npy")), np.asarray(array))


def test_an_array_from_a_file_no_longer_depends_on_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(4, np.float32))
    found = parse(str(tmp_path / "x.npy"))
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))

    same(found, np.ones(4, np.float32))


def test_foreign_byte_order_and_layout_are_read_as_the_numbers_they_mean(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)))

    same(parse(str(tmp_path / "x.npy")), np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("bfloat16", ml_dtypes.bfloat16), ("int4", ml_dtypes.int4), ("half", np.float16)],
)
def test_a_type_may_be_named(tmp_path: Path, name: str, kind: type) -> None:
    np.save(tmp_path / "x.npy", np.arange(-3, 3).astype(kind))

    same(parse(f"{tmp_path}/x.npy:{name}"), np.arange(-3, 3).astype(kind))


def test_a_type_that_numpy_forgets_must_be_named(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.ones(2, ml_dtypes.bfloat16))
    refused(
        str(file),
        f"inputs: {file}: must say what its elements of 2 bytes are, for numpy saved them without "
        f"a type; write x.npy:bfloat16 if they are that",
        FileError,
    )
    refused(
        f"{file}:float32",
        f"inputs: {file}: must be read as a type of 2 bytes, not float32 of 4; name another",
        FileError,
    )
    refused(f"{file}:", f"inputs: a dtype must be one of {DTYPES}, not ''; use one of these")


def test_a_named_type_does_not_convert(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.ones(2, np.float32))
    refused(
        f"{file}:bfloat16",
        f"inputs: {file}: must be read as what it holds, float32, not bfloat16; "
        f"leave :bfloat16 out, or convert the file",
        FileError,
    )


def test_a_file_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    must = f"inputs: {file}: must be a file that can be read, but:"
    refused(str(file), f"{must} No such file or directory; check the path", FileError)
    file.mkdir()
    refused(str(file), f"{must} Is a directory; check the path", FileError)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    os.mkfifo(file)
    must = f"inputs: {file}: must be a file that can be read, but:"
    why = "it is a named pipe, not a regular file; check the path"
    refused(str(file), f"{must} {why}", FileError)


@pytest.mark.parametrize("content", [b"", b"hello world", b"PK\x03\x04 a zip", b"\x80\x04."])
def test_a_file_must_be_an_array(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.npy"
    file.write_bytes(content)
    refused(
        str(file),
        f"inputs: {file}: must be an array that numpy saved, not some other file; "
        f"write it with numpy.save",
        FileError,
    )


def test_a_file_must_not_hold_pickles(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.array([{}]), allow_pickle=True)
    refused(
        str(file),
        f"inputs: {file}: must hold numbers, not Python objects; convert it with astype",
        FileError,
    )


@pytest.mark.parametrize("left", [6, 7, 60, 128, 140])
def test_a_file_must_be_whole(tmp_path: Path, left: int) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.arange(10.0))
    file.write_bytes(file.read_bytes()[:left])
    refused(
        str(file),
        f"inputs: {file}: must be whole, but is cut short or damaged; "
        f"write it again with numpy.save",
        FileError,
    )


def test_a_header_cannot_claim_more_than_the_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.arange(10.0))
    data = file.read_bytes().replace(b"(10,), }        ", b"(999999999999,),}")
    file.write_bytes(data)
    with pytest.raises(FileError, match="must be whole"):
        parse(str(file))


@pytest.mark.parametrize("words", ["", ":of=", ":of=1", ":of=1,2,3", ":of=1,x", ":of=1;2"])
def test_values_are_as_many_whole_numbers_as_the_shape_has(words: str) -> None:
    came = repr(words.removeprefix(":of=")) if words else "None"
    refused(
        f"values:2:int64{words}",
        f"inputs: values must say of=..., 2 whole numbers with commas between them, not {came}; "
        f"write for example values:2:int64:of=128,256",
    )
