"""Baselines: how other servers would fill steps on the same measured graphs.

rules     who gets how many token rows in the next step: chunked prefill (vLLM's), prefill first (SGLang's)
steps     what such a step costs: padded to the smallest graphs that hold it, or interpolated to its exact sizes
batcher   a rule as a simulation.batcher.Batcher
naming    budget:N, prefill_first[:N], fixed:N -> a Baseline with its batcher and its step costs
"""
