"""Writes of keys and values into a paged cache, which two functions of torch_npu have in common.

A cache has pages, called blocks, of *block_size* tokens each; a slot is a token's place,
``block * block_size + offset``. Tokens whose slot is negative are left out. Nothing is computed:
values come out as they went in.
"""
