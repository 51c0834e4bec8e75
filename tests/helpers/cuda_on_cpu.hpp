// Just enough CUDA to run the generated kernels on a CPU: every thread of a block is a fiber, and a barrier or a shuffle
// hands over to the next one, so threads of a warp go in lockstep. Slow, exact in its semantics, and needs no card.
// SANITIZED: it is a thread of the CPU, for a sanitizer that finds two of them at the same number without a barrier.
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
#ifdef SANITIZED
#include <atomic>
#include <barrier>
#include <memory>
#include <thread>
static thread_local Index threadIdx;
#else
static Index threadIdx;
#endif
static Index blockIdx, blockDim, gridDim;

template <class T> T __ldg(const T* p) { return *p; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }

#ifdef SANITIZED
inline void atomicMax(unsigned long long* at, unsigned long long x) {
    atomic<unsigned long long>& value = *reinterpret_cast<atomic<unsigned long long>*>(at);
    unsigned long long old = value.load();
    while (old < x && !value.compare_exchange_weak(old, x)) {}
}
namespace fibers {
static unique_ptr<std::barrier<>> whole, warps[32];
static double exchanged[1024];
inline void barrier() { whole->arrive_and_wait(); }
inline void yield_() { warps[threadIdx.x / 32]->arrive_and_wait(); }
inline void launch(int blocks, int threads, function<void()> kernel) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        whole = make_unique<std::barrier<>>(threads);
        for (int w = 0; w < threads / 32; w++) warps[w] = make_unique<std::barrier<>>(32);
        vector<thread> running;
        for (int t = 0; t < threads; t++) running.emplace_back([=] { threadIdx.x = t; kernel(); });
        for (thread& t : running) t.join();
    }
}
template <class T> T exchange(T v, int lane) {
    exchanged[threadIdx.x] = v;
    yield_();
    const T other = (T)exchanged[threadIdx.x / 32 * 32 + lane];
    yield_();
    return other;
}
}
#else
inline void atomicMax(unsigned long long* at, unsigned long long x) { *at = max(*at, x); }
namespace fibers {
const int STACK = 128 * 1024, MOST = 1024;
struct Fiber { ucontext_t context; bool done; int parity; double slot[2]; char* stack; };
static Fiber fiber[MOST];
static ucontext_t scheduler;
static int current;
static function<void()> kernel;
static int alive, arrived, generation;
inline void yield_() { swapcontext(&fiber[current].context, &scheduler); }
inline void release() { if (arrived == alive) { arrived = 0; generation++; } }
inline void entry() { kernel(); fiber[current].done = true; alive--; release(); yield_(); }
// Waits for all threads of the block: warps with more shuffles than others take longer to come here.
inline void barrier() {
    const int mine = generation;
    arrived++;
    release();
    do yield_(); while (generation == mine);
}
inline void block(int threads) {
    alive = threads;
    arrived = 0;
    for (int t = 0; t < threads; t++) {
        Fiber& f = fiber[t];
        if (!f.stack) f.stack = (char*)malloc(STACK);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        f.done = false;
        f.parity = 0;
        makecontext(&f.context, entry, 0);
    }
    for (bool running = true; running;) {
        running = false;
        for (int t = 0; t < threads; t++) {
            if (fiber[t].done) continue;
            running = true;
            current = t;
            threadIdx.x = t;
            swapcontext(&scheduler, &fiber[t].context);
        }
    }
}
inline void launch(int blocks, int threads, function<void()> k) {
    kernel = k;
    gridDim.x = blocks;
    blockDim.x = threads;
    for (int b = 0; b < blocks; b++) { blockIdx.x = b; block(threads); }
}
template <class T> T exchange(T v, int lane) {
    const int me = current, warp = me / 32 * 32;
    const int k = fiber[me].parity;
    fiber[me].parity ^= 1;
    fiber[me].slot[k] = v;
    yield_();
    return (T)fiber[warp + lane].slot[k];
}
}
#endif
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
