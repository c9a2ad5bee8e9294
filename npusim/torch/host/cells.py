"""Fused cells of recurrent networks on host tensors; torch fuses them only for accelerators.

16-bit floats are computed in float32 and rounded once. The equations are those of
`torch.nn.LSTMCell` and `torch.nn.GRUCell`. The workspace for the gradients has the layout of
torch's kernels for accelerators (aten/src/ATen/native/cuda/RNN.cu); nothing else reads it.
"""

from __future__ import annotations

import torch

__all__ = ["gru_cell", "gru_cell_backward", "lstm_cell", "lstm_cell_backward"]


def _sum(dtype: torch.dtype, first: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
    """The sum of the tensors that are given, in *dtype*."""
    found = first.to(dtype)
    for other in others:
        found = found if other is None else found + other.to(dtype)
    return found


def _wide(x: torch.Tensor) -> torch.dtype:
    """The type that *x* is computed in."""
    return torch.promote_types(x.dtype, torch.float32)


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`_thnn_fused_lstm_cell`: the new hidden and cell states, and the four gates."""
    wide, own = _wide(cx), input_gates.dtype
    gates = _sum(wide, input_gates, hidden_gates, input_bias, hidden_bias)
    enter, forget, cell, leave = gates.chunk(4, 1)
    enter, forget, leave = enter.sigmoid(), forget.sigmoid(), leave.sigmoid()
    cell = cell.tanh()
    cy = forget * cx.to(wide) + enter * cell
    hy = leave * cy.tanh()
    workspace = torch.cat([enter, forget, cell, leave], 1)
    return hy.to(own), cy.to(own), workspace.to(own)


def lstm_cell_backward(
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradients of the gates, of the cell state, and of each bias."""
    wide, own = _wide(cx), cx.dtype
    enter, forget, cell, leave = workspace.to(wide).chunk(4, 1)
    reached = cy.to(wide).tanh()
    of_hy = torch.zeros_like(reached) if grad_hy is None else grad_hy.to(wide)
    of_cell = of_hy * leave * (1 - reached * reached)
    of_cell = of_cell if grad_cy is None else of_cell + grad_cy.to(wide)
    gates = [
        of_cell * cell * enter * (1 - enter),
        of_cell * cx.to(wide) * forget * (1 - forget),
        of_cell * enter * (1 - cell * cell),
        of_hy * reached * leave * (1 - leave),
    ]
    of_gates = torch.cat(gates, 1)
    of_bias = of_gates.sum(0).to(own) if has_bias else None
    return of_gates.to(own), (of_cell * forget).to(own), of_bias


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`_thnn_fused_gru_cell`: the new hidden state, and what its gradient needs."""
    wide, own = _wide(hx), input_gates.dtype
    of_input = _sum(wide, input_gates, input_bias).chunk(3, 1)
    of_hidden = _sum(wide, hidden_gates, hidden_bias).chunk(3, 1)
    reset = (of_input[0] + of_hidden[0]).sigmoid()
    update = (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    hy = new + update * (hx.to(wide) - new)
    workspace = torch.cat([reset, update, new, hx.to(wide), of_hidden[2]], 1)
    return hy.to(own), workspace.to(own)


def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of both gates, of the hidden state, and of both biases."""
    wide, own = _wide(workspace), workspace.dtype
    reset, update, new, hx, of_hidden = workspace.to(wide).chunk(5, 1)
    grad = grad_hy.to(wide)
    of_new = grad * (1 - update) * (1 - new * new)
    of_update = grad * (hx - new) * update * (1 - update)
    of_reset = of_new * of_hidden * reset * (1 - reset)
    of_input_gates = torch.cat([of_reset, of_update, of_new], 1)
    of_hidden_gates = torch.cat([of_reset, of_update, of_new * reset], 1)
    found = (of_input_gates, of_hidden_gates, grad * update)
    biases = (of_input_gates.sum(0), of_hidden_gates.sum(0)) if has_bias else (None, None)
    return tuple(each if each is None else each.to(own) for each in (*found, *biases))
