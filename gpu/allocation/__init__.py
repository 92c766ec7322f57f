"""Who verifies how many drafts, decided on the device: a round's target rows go to the likeliest prefixes.

`create_allocator` chooses between the CUDA kernel and its torch twin.
"""

from gpu.allocation.create import create_allocator as create_allocator

__all__ = ["create_allocator"]
