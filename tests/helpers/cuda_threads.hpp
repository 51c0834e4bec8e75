// Just enough CUDA to run a gradient's kernels with a thread of the CPU for every thread of a block, under a sanitizer
// that finds two of them at the same number without a barrier between. Blocks run one after the other.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>
using namespace std;

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct Index { int x; };
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

inline float __fadd_rn(float x, float y) { return x + y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
inline void atomicMax(unsigned long long* at, unsigned long long x) {
    atomic<unsigned long long>& value = *reinterpret_cast<atomic<unsigned long long>*>(at);
    unsigned long long old = value.load();
    while (old < x && !value.compare_exchange_weak(old, x)) {}
}

static unique_ptr<barrier<>> block_barrier;
static vector<unique_ptr<barrier<>>> warp_barriers;
static double exchanged[1024];
inline void __syncthreads() { block_barrier->arrive_and_wait(); }
template <class T> T __shfl_xor_sync(unsigned, T v, int d) {
    barrier<>& warp = *warp_barriers[threadIdx.x / 32];
    exchanged[threadIdx.x] = v;
    warp.arrive_and_wait();
    const T other = (T)exchanged[threadIdx.x ^ d];
    warp.arrive_and_wait();
    return other;
}
inline void launch(int blocks, int threads, function<void()> kernel) {
    for (int b = 0; b < blocks; b++) {
        block_barrier = make_unique<barrier<>>(threads);
        warp_barriers.clear();
        for (int w = 0; w < threads / 32; w++) warp_barriers.push_back(make_unique<barrier<>>(32));
        vector<thread> running;
        for (int t = 0; t < threads; t++)
            running.emplace_back([=] {
                threadIdx.x = t;
                blockIdx.x = b;
                blockDim.x = threads;
                gridDim.x = blocks;
                kernel();
            });
        for (thread& t : running) t.join();
    }
}
template <class T> vector<T> contents(const char* name) {
    ifstream file(name, ios::binary | ios::ate);
    vector<T> found(file.tellg() / sizeof(T));
    file.seekg(0);
    file.read((char*)found.data(), found.size() * sizeof(T));
    return found;
}

// The primitives of the generated text, in plain C++.
typedef float real;
typedef float4 vec;
inline float reciprocal(float x) { return 1 / x; }
inline float clamp01(float x) { return min(max(x, 0.0f), 1.0f); }
inline float product(float s1, float s2) { return fma(s1, s2, 1e-37f); }
inline double reciprocal(double x) { return 1 / max(x, 2.3e-308); }
inline double clamp01(double x) { return min(fabs(x), 1.0); }
inline double product(double s1, double s2) { return s1 * s2; }
inline real root(real x) { return sqrt(x); }
