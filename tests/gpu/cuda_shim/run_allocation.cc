// Runs gpu/allocation/kernel.cu on cases from standard input and writes the rows of each to standard output.
//
// A case: int32 lanes, draft_depth, target_rows, warps, seed; float32 joint [lanes, draft_depth]; int64 limits [lanes];
// int64 slots [lanes]. Its rows: int64 [lanes], which hold -1 where the kernel wrote none.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "fibres.h"

extern "C" void allocate_rows(
    const float* joint, const long long* limits, const long long* slots, int lanes, int draft_depth, int target_rows,
    long long* rows);

namespace {

struct Arguments {
    const float* joint;
    const long long *limits, *slots;
    int lanes, draft_depth, target_rows;
    long long* rows;
};
Arguments arguments;

void call_kernel() {
    const Arguments& a = arguments;
    allocate_rows(a.joint, a.limits, a.slots, a.lanes, a.draft_depth, a.target_rows, a.rows);
}

template <typename Number>
bool read(std::vector<Number>& numbers) {
    return std::fread(numbers.data(), sizeof(Number), numbers.size(), stdin) == numbers.size();
}

template <typename Number>
void allow(const std::vector<Number>& numbers, bool writable) {
    allow_access(numbers.data(), numbers.size() * sizeof(Number), writable);
}

}  // namespace

int main() {
    std::vector<std::int32_t> head(5);
    while (read(head)) {
        const int lanes = head[0], draft_depth = head[1];
        std::vector<float> joint(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(draft_depth));
        std::vector<long long> limits(static_cast<std::size_t>(lanes)), slots(limits), rows(limits.size(), -1);
        if (!read(joint) || !read(limits) || !read(slots)) {
            std::fprintf(stderr, "a case is cut short\n");
            return 2;
        }
        forget_regions();
        allow(joint, false);
        allow(limits, false);
        allow(slots, false);
        allow(rows, true);
        arguments = {joint.data(), limits.data(), slots.data(), lanes, draft_depth, head[2], rows.data()};
        run_block(head[3] * 32, static_cast<std::uint64_t>(head[4]), call_kernel);
        std::fwrite(rows.data(), sizeof(long long), rows.size(), stdout);
    }
    return 0;
}
