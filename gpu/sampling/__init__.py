"""Choosing tokens: processors, draws, verification of drafts, log-probabilities.

The seeds' guarantee. Output token i of a request that is greedy or `reproducible` is a function of the logits after
the tokens before it, of the request's parameters and tokens, and of (seed, i): of no other request, batch, width,
source of drafts or preemption, and so the output is that of plain decoding. (Logits may differ by float rounding from
one batch shape to another, which matters where two probabilities are nearly equal, or a draw falls on an edge.) A
request that is neither draws from the same distributions, but which token it gets may depend on the rounds it came in.

Uniform numbers belong to (seed, output token, purpose). A round that ends early leaves the numbers of later tokens to
the next round: no emitted token has depended on them.
"""

from gpu.sampling.drafts import draft_sample
from gpu.sampling.logprobs import row_logprobs, token_logprobs
from gpu.sampling.philox import Purpose, uniform, uniforms
from gpu.sampling.table import SamplingTable
from gpu.sampling.verification import VerifyLane, VerifyOutcome, verify_round

__all__ = [
    "Purpose",
    "SamplingTable",
    "VerifyLane",
    "VerifyOutcome",
    "draft_sample",
    "row_logprobs",
    "token_logprobs",
    "uniform",
    "uniforms",
    "verify_round",
]
