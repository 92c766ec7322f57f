// The block's threads as fibres; see fibres.h. A fibre starts through ucontext and is resumed with _longjmp, which,
// unlike swapcontext, makes no system call.

#include "fibres.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <utility>
#include <vector>

#include "cuda_shim.h"

extern char __start_shared_memory[], __stop_shared_memory[];  // from the linker: the section of __shared__

ThreadIndex threadIdx;
ThreadIndex blockDim;

namespace {

constexpr int WARP = 32;
constexpr std::size_t STACK_BYTES = 16 << 10;
constexpr unsigned ACCESSES_PER_YIELD = 8;
constexpr std::size_t WORD_BYTES = 4;

enum class Waits { NOT, BARRIER, SUM, READ };

struct Fibre {
    std::jmp_buf place;
    bool started, ended;
    Waits waits;
    unsigned value;
};

struct Warp {
    int waiting, operations;
    unsigned values[WARP];  // of the last operation that all threads reached; stays until all have read it
};

// Who touched a word of shared memory last, and how many barriers and operations of its warp came before.
struct Access {
    int thread = -1, barriers = 0, operations = 0;
};

struct Word {
    Access write, read;
};

struct Region {
    const char *start, *end;
    bool writable;
};

std::vector<Fibre> fibres;
std::vector<char> stacks;
std::vector<int> runnable;
std::vector<Region> regions;
std::vector<Word> words;  // of shared memory
std::uint64_t dice;
std::jmp_buf scheduler;
void (*body)();
int current;
int at_barrier, barriers;
std::vector<Warp> warps;

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "%s (thread %d of %u)\n", what, current, blockDim.x);
    std::_Exit(3);  // no destructors: they would free the stack that this runs on
}

// The next random number: SplitMix64.
std::uint64_t roll() {
    std::uint64_t mixed = dice += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

void give_way() {
    if (_setjmp(fibres[current].place) == 0) {
        _longjmp(scheduler, 1);
    }
}

void release(int first, int count) {
    for (int i = first; i < first + count; i++) {
        fibres[i].waits = Waits::NOT;
        runnable.push_back(i);
    }
}

void meet_block() {
    fibres[current].waits = Waits::BARRIER;
    if (++at_barrier == static_cast<int>(blockDim.x)) {
        at_barrier = 0;
        barriers++;
        release(0, static_cast<int>(blockDim.x));
    }
    give_way();
}

// Waits until all threads of the warp are at an operation of the same kind: the values of all, by place in the warp.
const unsigned* meet_warp(unsigned mask, Waits operation, unsigned value) {
    if (mask != 0xffffffffu) {
        fail("a mask that is not the whole warp");
    }
    Warp& warp = warps[current / WARP];
    const int first = current / WARP * WARP;
    fibres[current].waits = operation;
    fibres[current].value = value;
    if (++warp.waiting == WARP) {
        for (int i = 0; i < WARP; i++) {
            if (fibres[first + i].waits != operation) {
                fail("different warp operations met");
            }
            warp.values[i] = fibres[first + i].value;
        }
        warp.waiting = 0;
        warp.operations++;
        release(first, WARP);
    }
    give_way();
    return warp.values;
}

void start_fibre() {
    body();
    fibres[current].ended = true;
    _longjmp(scheduler, 1);
}

void resume(int thread) {
    static ucontext_t context;  // makecontext is needed for a fibre's first step only
    current = thread;
    threadIdx.x = static_cast<unsigned>(thread);
    if (_setjmp(scheduler) != 0) {
        return;
    }
    if (fibres[thread].started) {
        _longjmp(fibres[thread].place, 1);
    }
    fibres[thread].started = true;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks.data() + static_cast<std::size_t>(thread) * STACK_BYTES;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, start_fibre, 0);
    setcontext(&context);
}

// Whether a barrier, or an operation of their common warp, stands between `earlier` and `now`.
bool ordered(const Access& earlier, const Access& now) {
    if (earlier.thread < 0 || earlier.thread == now.thread || earlier.barriers != now.barriers) {
        return true;
    }
    return earlier.thread / WARP == now.thread / WARP && earlier.operations != now.operations;
}

void check_race(std::size_t first, std::size_t last, bool writes) {
    const Access now{current, barriers, warps[current / WARP].operations};
    for (std::size_t i = first; i <= last; i++) {
        if (!ordered(words[i].write, now) || (writes && !ordered(words[i].read, now))) {
            fail("a race: another thread's access to this shared word is not ordered");
        }
        (writes ? words[i].write : words[i].read) = now;
    }
}

void on_access(const void* address, std::size_t bytes, bool writes) {
    const char* start = static_cast<const char*>(address);
    const char* end = start + bytes;
    bool allowed = start >= stacks.data() && end <= stacks.data() + stacks.size();
    for (std::size_t i = 0; i < regions.size() && !allowed; i++) {
        allowed = start >= regions[i].start && end <= regions[i].end && (regions[i].writable || !writes);
    }
    if (!allowed) {
        fail(writes ? "a write outside what the kernel may write" : "a read outside what the kernel may read");
    }
    if (start >= __start_shared_memory && end <= __stop_shared_memory) {
        const std::size_t offset = static_cast<std::size_t>(start - __start_shared_memory);
        check_race(offset / WORD_BYTES, (offset + bytes - 1) / WORD_BYTES, writes);
    }
    if (roll() % ACCESSES_PER_YIELD == 0) {
        runnable.push_back(current);
        give_way();
    }
}

}  // namespace

void allow_access(const void* start, std::size_t bytes, bool writable) {
    regions.push_back({static_cast<const char*>(start), static_cast<const char*>(start) + bytes, writable});
}

void forget_regions() {
    regions.clear();
}

void run_block(int threads, std::uint64_t seed, void (*kernel)()) {
    dice = seed;
    for (char* byte = __start_shared_memory; byte < __stop_shared_memory; byte++) {
        *byte = static_cast<char>(roll());
    }
    allow_access(__start_shared_memory, static_cast<std::size_t>(__stop_shared_memory - __start_shared_memory), true);
    allow_access(&threadIdx, sizeof threadIdx, false);
    allow_access(&blockDim, sizeof blockDim, false);
    blockDim.x = static_cast<unsigned>(threads);
    fibres.assign(static_cast<std::size_t>(threads), Fibre{});
    warps.assign(static_cast<std::size_t>(threads / WARP), Warp{});
    at_barrier = barriers = 0;
    words.assign(static_cast<std::size_t>(__stop_shared_memory - __start_shared_memory) / WORD_BYTES + 1, Word{});
    body = kernel;
    if (stacks.size() < static_cast<std::size_t>(threads) * STACK_BYTES) {
        stacks.resize(static_cast<std::size_t>(threads) * STACK_BYTES);
    }
    runnable.clear();
    release(0, threads);
    while (!runnable.empty()) {
        std::swap(runnable[roll() % runnable.size()], runnable.back());
        const int thread = runnable.back();
        runnable.pop_back();
        resume(thread);
    }
    for (current = 0; current < threads; current++) {
        if (!fibres[static_cast<std::size_t>(current)].ended) {
            fail("a barrier or shuffle that only some threads reached");
        }
    }
}

void __syncthreads() {
    meet_block();
}

int warp_sum(unsigned mask, int value) {
    const unsigned* values = meet_warp(mask, Waits::SUM, static_cast<unsigned>(value));
    unsigned sum = 0;
    for (int i = 0; i < WARP; i++) {
        sum += values[i];
    }
    return static_cast<int>(sum);
}

unsigned warp_read(unsigned mask, unsigned value, int from) {
    const unsigned* values = meet_warp(mask, Waits::READ, value);
    return from < 0 || from >= WARP ? value : values[from];
}

int atomicAdd(int* address, int value) {
    const int before = *address;
    *address = before + value;
    return before;
}

// What -fsanitize=thread calls in the kernel's translation unit.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read1(void* address) { on_access(address, 1, false); }
void __tsan_read4(void* address) { on_access(address, 4, false); }
void __tsan_read8(void* address) { on_access(address, 8, false); }
void __tsan_write1(void* address) { on_access(address, 1, true); }
void __tsan_write4(void* address) { on_access(address, 4, true); }
void __tsan_write8(void* address) { on_access(address, 8, true); }
}
