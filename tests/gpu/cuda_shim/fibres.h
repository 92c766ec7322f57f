// Runs one block of a CUDA kernel as fibres on one CPU thread, in a random order that the seed fixes.
//
// A fibre gives way at every barrier and shuffle, and now and then at a memory access, so that an update of shared
// memory that is not atomic can be torn. Ends the process with a message on the first of: a barrier or shuffle that
// only some threads reach; an access outside the regions allowed; a mask that names less than the whole warp; accesses
// of two threads to a word of shared memory, one of them a write, without a barrier or an operation of their warp in
// between (of the threads that have read a word, only the last is remembered).

#pragma once

#include <cstddef>
#include <cstdint>

// An address range [start, start + bytes) that the kernel may read, and write if `writable`.
void allow_access(const void* start, std::size_t bytes, bool writable);
void forget_regions();

// Fills shared memory with random bytes, then runs `kernel` once for each of `threads` (a multiple of 32).
void run_block(int threads, std::uint64_t seed, void (*kernel)());
