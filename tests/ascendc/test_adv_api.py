"""Headers of a checkout for the layers above stand on npusim's basic API; the checkout is ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sources import probe

import npusim.ascendc
from npusim.ascendc import CompileError

X = np.arange(1024, dtype=np.float32)
HEADER = """#include "../../../impl/adv_api/math/thrice_impl.h"
"""
IMPLEMENTATION = """#include "../../../include/basic_api/kernel_basic_intf.h"
namespace AscendC {
template <typename T>
__aicore__ inline void Thrice(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count)
{
    Muls(dst, src, T(3), count);
}
// The name of one of npusim's, which is not there.
template <typename T>
__aicore__ inline void Tanh(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count)
{
    Thrice(dst, src, count);
}
}
"""


def checkout(folder: Path) -> Path:
    """A folder that is laid out like asc-devkit."""
    for name, text in (
        ("include/adv_api/math/thrice.h", HEADER),
        ("impl/adv_api/math/thrice_impl.h", IMPLEMENTATION),
        ("include/basic_api/kernel_basic_intf.h", "#error the basic layer of the checkout"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("folder", ["adv_api", "lib"])
def test_headers_of_a_checkout(tmp_path: Path, folder: str) -> None:
    file = probe(tmp_path, "    Tanh(b, a, N);").file
    file.write_text(f'#include "{folder}/math/thrice.h"\n{file.read_text()}')
    root = checkout(tmp_path / "asc-devkit")
    z = np.zeros_like(X)
    npusim.ascendc.load(file, adv_api=root).probe[1](X, z, device="Atlas A2")
    np.testing.assert_array_equal(z, 3 * X)


def test_a_name_that_they_ask_for_in_vain(tmp_path: Path) -> None:
    file = probe(tmp_path, "    Tanh(b, a, N);").file
    file.write_text(f'#include "adv_api/math/thrice.h"\n{file.read_text()}')
    root = checkout(tmp_path / "asc-devkit")
    own = root / "impl/adv_api/math/thrice_impl.h"
    own.write_text(IMPLEMENTATION.replace("T(3)", "T(SECRET_OF_THE_BASIC_LAYER)"))
    with pytest.raises(CompileError) as caught:
        npusim.ascendc.load(file, adv_api=root).probe[1](X, X.copy(), device="Atlas A2")
    assert "'SECRET_OF_THE_BASIC_LAYER' was not declared in this scope" in str(caught.value)
    assert "thrice_impl.h:6:" in str(caught.value)


def test_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    file = probe(tmp_path, "    Exp(b, a, N);").file
    with pytest.raises(CompileError) as caught:
        npusim.ascendc.load(file, adv_api=tmp_path).probe[1](X, X.copy(), device="Atlas A2")
    assert str(caught.value) == (
        f"ascendc: --adv-api must name a checkout of asc-devkit, which has include/adv_api, not "
        f"{tmp_path}; name its root"
    )
