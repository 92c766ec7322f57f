"""Discrete-event replay of an arrival trace against a measured catalog.

    workload.parse_arrivals  CSV text            -> Workload: who arrives when, with how many tokens
    measured.parse_catalog   CSV text            -> MeasuredTable: durations by shape and context length
    measured.scheduler_shapes                    -> the shapes that Helios prepares from such a table
    durations                                    -> true durations of plans: noise, drift, a wrong capture, context
    acceptance               CSV text            -> Survival: how many drafts of a round are accepted
    machine.simulate(batcher, workload, ...)     -> SimulationResult
    recorded                 recorded samples    -> the same durations, host times and acceptance, taken again
    warm                     a recorded state    -> a scheduler that starts with what a real one had learned
    metrics.summary(result, limits)              -> the figures, as plain JSON values

A `batcher.Batcher` decides what runs: scheduler.RequestScheduler, or a baseline from scheduler.simulation.baselines.
All of them run on the same machine, host costs, arrivals, luck and metrics. Nothing here reads a clock or a file; every
random number comes from the seed that the caller gives.
"""
