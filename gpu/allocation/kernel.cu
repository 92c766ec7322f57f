// Device allocation of target rows, in one launch of one block of whole warps.
//
// Every active lane (limit > 0) gets the row of its pending token. The rows left go to drafts in one order over all
// lanes: joint prefix probability descending, depth ascending, request slot ascending. A lane's scores never rise with
// depth, for their running minimum is taken first, so its drafts stand in that order one behind the other. Hence a
// lane keeps exactly those drafts before which fewer drafts stand, in all lanes together, than rows are left: a warp
// bisects its lane for the last of them. Nothing loops over the target rows.
//
// CuPy compiles this file with NVRTC and the tests with nvcc and g++, so it includes no header. MAX_LANES (at most 64)
// and MAX_DRAFTS (at most 63) are macros of the build. __reduce_add_sync needs compute capability 8.0.

typedef unsigned long long DraftKey;

constexpr int WARP = 32;
constexpr unsigned WHOLE_WARP = 0xffffffffu;

// A draft that comes earlier in the order has the higher key, and no two drafts have the same: 32 bits of the score
// (bits of floats that are not negative rise with the number), 6 of the depth and 6 of the lane's rank by slot.
__device__ DraftKey draft_key(float score, int depth, int slot_rank) {
    const int tie = (MAX_DRAFTS - depth) << 6 | (MAX_LANES - 1 - slot_rank);
    return static_cast<DraftKey>(__float_as_uint(score)) << 12 | static_cast<DraftKey>(tie);
}

// The smallest `score` of this thread and those before it in the warp. All threads of the warp call it.
__device__ float running_minimum(float score, int column) {
    for (int distance = 1; distance < WARP; distance *= 2) {
        const float earlier = __shfl_up_sync(WHOLE_WARP, score, distance);
        if (column >= distance) {
            score = fminf(score, earlier);
        }
    }
    return score;
}

// The lanes whose slot comes before that of `lane`; equal slots, which only inactive lanes have, go by lane.
__device__ int rank_by_slot(const long long* lane_slots, int lanes, int lane, int column) {
    const long long slot = lane_slots[lane];
    int before = 0;
    for (int other = column; other < lanes; other += WARP) {
        const bool earlier = lane_slots[other] == slot ? other < lane : lane_slots[other] < slot;
        before += earlier ? 1 : 0;
    }
    return __reduce_add_sync(WHOLE_WARP, before);
}

// Writes the keys [draft_depth] of one lane with the scores `joint` [draft_depth]; the warp's threads share the depths.
__device__ void write_keys(const float* joint, int draft_depth, int slot_rank, int column, DraftKey* keys) {
    float lowest = __int_as_float(0x7f800000);  // infinity
    for (int first = 0; first < draft_depth; first += WARP) {
        const int index = first + column;
        const float given = index < draft_depth ? joint[index] : 0.0f;
        const float score = running_minimum(fminf(given > 0.0f ? given : 0.0f, lowest), column);  // NaN and -0.0 are 0
        lowest = __shfl_sync(WHOLE_WARP, score, WARP - 1);
        if (index < draft_depth) {
            keys[index] = draft_key(score, index + 1, slot_rank);
        }
    }
}

// How many of one lane's descending keys [drafts] are above `key`.
__device__ int drafts_before(const DraftKey* keys, int drafts, DraftKey key) {
    int low = 0;
    int high = drafts;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (keys[middle] > key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// joint: float32 [lanes, draft_depth]; limits (rows, pending token included; 0: inactive), slots, rows: int64 [lanes].
// 1 <= lanes <= MAX_LANES, 1 <= draft_depth <= MAX_DRAFTS. With fewer target rows than active lanes each of these
// still gets its one row.
extern "C" __global__ void __launch_bounds__(1024) allocate_rows(
    const float* joint, const long long* limits, const long long* slots, int lanes, int draft_depth, int target_rows,
    long long* rows) {
    __shared__ long long lane_slots[MAX_LANES];
    __shared__ int offered[MAX_LANES];                 // drafts that a lane may verify, -1 of an inactive lane
    __shared__ DraftKey keys[MAX_LANES][MAX_DRAFTS];  // an odd stride: no two lanes' keys share banks
    const int column = static_cast<int>(threadIdx.x) % WARP;
    const int warp = static_cast<int>(threadIdx.x) / WARP;
    const int warps = static_cast<int>(blockDim.x) / WARP;

    for (int lane = static_cast<int>(threadIdx.x); lane < lanes; lane += static_cast<int>(blockDim.x)) {
        const long long drafts = limits[lane] - 1;
        lane_slots[lane] = slots[lane];
        offered[lane] = drafts < 0 ? -1 : drafts < draft_depth ? static_cast<int>(drafts) : draft_depth;
    }
    __syncthreads();
    for (int lane = warp; lane < lanes; lane += warps) {
        const int slot_rank = rank_by_slot(lane_slots, lanes, lane, column);
        write_keys(joint + lane * draft_depth, draft_depth, slot_rank, column, keys[lane]);
    }
    __syncthreads();

    int active = 0;
    for (int lane = column; lane < lanes; lane += WARP) {
        active += offered[lane] >= 0 ? 1 : 0;
    }
    active = __reduce_add_sync(WHOLE_WARP, active);
    const int left = target_rows - active;
    for (int lane = warp; lane < lanes; lane += warps) {
        int kept = 0;
        int most = offered[lane];
        while (kept < most) {
            const int depth = (kept + most + 1) / 2;
            int before = 0;
            for (int other = column; other < lanes; other += WARP) {
                before += drafts_before(keys[other], offered[other], keys[lane][depth - 1]);
            }
            before = __reduce_add_sync(WHOLE_WARP, before);
            if (before < left) {
                kept = depth;
            } else {
                most = depth - 1;
            }
        }
        if (column == 0) {
            rows[lane] = offered[lane] < 0 ? 0 : 1 + kept;
        }
    }
}
