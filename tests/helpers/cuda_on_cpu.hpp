// Just enough CUDA to run the generated kernels on a CPU: every thread of a block is a fiber, and a shuffle hands over to
// the next one of its warp, so threads of a warp go in lockstep. A warp goes on alone until it meets a barrier of the
// block, and which one is first is drawn anew every time: where a barrier is missing, threads read what others have not
// written yet, or add in any order, and results are wrong or differ in their bits from run to run.
// Slow, exact in its semantics, and needs no card.
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
using namespace std;

#define __device__
#define __global__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct Index { int x; };
static Index threadIdx, blockIdx, blockDim, gridDim;

template <class T> T __ldg(const T* p) { return *p; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }

inline void atomicMax(unsigned long long* at, unsigned long long x) { *at = max(*at, x); }

namespace fibers {
const int STACK = 128 * 1024, MOST = 1024, WARP = 32;
struct Fiber { ucontext_t context; bool done, waiting; int parity; double slot[2]; char* stack; };
static Fiber fiber[MOST];
static ucontext_t scheduler;
static int current;
static function<void()> kernel;
inline void yield_() { swapcontext(&fiber[current].context, &scheduler); }
inline void entry() { kernel(); fiber[current].done = true; yield_(); }
inline void barrier() { fiber[current].waiting = true; yield_(); }
inline bool backwards() {
    static unsigned state = 1;
    state = 1664525 * state + 1013904223;
    return state >> 31;
}
// The threads of a warp take turns until each of them is done or waits for the block.
inline void warp(int first, int count) {
    const bool back = backwards();
    for (bool running = true; running;) {
        running = false;
        for (int k = 0; k < count; k++) {
            const int t = first + (back ? count - 1 - k : k);
            if (fiber[t].done || fiber[t].waiting) continue;
            running = true;
            current = t;
            threadIdx.x = t;
            swapcontext(&scheduler, &fiber[t].context);
        }
    }
}
inline void block(int threads) {
    for (int t = 0; t < threads; t++) {
        Fiber& f = fiber[t];
        if (!f.stack) f.stack = (char*)malloc(STACK);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        f.done = f.waiting = false;
        f.parity = 0;
        makecontext(&f.context, entry, 0);
    }
    const int warps = (threads + WARP - 1) / WARP;
    while (any_of(fiber, fiber + threads, [](const Fiber& f) { return !f.done; })) {
        const bool back = backwards();
        for (int k = 0; k < warps; k++) {
            const int first = (back ? warps - 1 - k : k) * WARP;
            warp(first, min(WARP, threads - first));
        }
        for (int t = 0; t < threads; t++) fiber[t].waiting = false;
    }
}
inline void launch(int blocks, int threads, function<void()> k) {
    kernel = k;
    gridDim.x = blocks;
    blockDim.x = threads;
    for (int b = 0; b < blocks; b++) { blockIdx.x = b; block(threads); }
}
template <class T> T exchange(T v, int lane) {
    const int me = current, warp = me / WARP * WARP;
    const int k = fiber[me].parity;
    fiber[me].parity ^= 1;
    fiber[me].slot[k] = v;
    yield_();
    return (T)fiber[warp + lane].slot[k];
}
}
template <class T> T __shfl_sync(unsigned, T v, int lane) { return fibers::exchange(v, lane & 31); }
template <class T> T __shfl_up_sync(unsigned, T v, int d) {
    const int lane = threadIdx.x % 32;
    return fibers::exchange(v, lane >= d ? lane - d : lane);
}
template <class T> T __shfl_down_sync(unsigned, T v, int d) {
    const int lane = threadIdx.x % 32;
    return fibers::exchange(v, lane + d < 32 ? lane + d : lane);
}
template <class T> T __shfl_xor_sync(unsigned, T v, int d) { return fibers::exchange(v, (threadIdx.x % 32) ^ d); }
inline void __syncthreads() { fibers::barrier(); }
inline void __syncwarp() { fibers::yield_(); }

// The primitives of the generated text, in plain C++.
typedef REAL real;
typedef VEC vec;
inline real part(const vec& v, int k) { real x; memcpy(&x, (const char*)&v + k * sizeof(real), sizeof(real)); return x; }
inline float reciprocal(float x) { return 1 / x; }
inline float clamp01(float x) { return min(max(x, 0.0f), 1.0f); }
inline float product(float s1, float s2) { return fma(s1, s2, 1e-37f); }
inline double reciprocal(double x) { return 1 / max(x, 2.3e-308); }
inline double clamp01(double x) { return min(fabs(x), 1.0); }
inline double product(double s1, double s2) { return s1 * s2; }
inline real root(real x) { return sqrt(x); }
