"""Prepared programs as CUDA graphs: recorded once, replayed on one stream, two frames deep.

What only CUDA can do is behind gpu.cuda.stream.GraphStream, so that everything else runs in tests without a GPU.
"""
