"""FAI, the kernel of attention for tokens of all requests behind each other (TND).

.. code-block:: text

    cube core     S = Q @ K^T of 512 keys, to a workspace        P @ V of the 512 keys before
    vector cores  maximum, exp, sum of S; P back, 16 bits        O = O * shrink + P @ V

A task is up to 128 rows, query tokens of one or more heads that share keys, against all keys that
they see, in tiles of 512; tasks go round the cores. Scores, probabilities and products pass through
global memory, in three slots of each, and the cube is two tiles ahead. FAI-FD splits the tiles of a
task over cores and combines what these have found; a task of FAI-DEC, one token of a request, has
several heads of keys.

Sources: ops-transformer@3a280bc attention/fused_infer_attention_score, op_kernel and op_host.
"""
