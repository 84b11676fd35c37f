// Sums that a product left as float32, on their way to bfloat16.

struct Narrow {
    View dst, x;
    const float *bias; // a row to add to every one; or null
    int cols;
};

// narrow: dst = x + bias. Columns and strides are multiples of 4: a thread has 4
// neighbours. Blocks: rows × columns.
extern "C" __global__ void __launch_bounds__(256) narrow(const Narrow p) {
    let_next_begin();
    wait_for_earlier();
    int i = blockIdx.x;
    for (int j = 4 * (blockIdx.y * 256 + threadIdx.x); j < p.cols; j += 4 * 256 * gridDim.y) {
        float4 v = load4(p.x, i, j);
        if (p.bias) {
            float4 b = *(const float4 *)(p.bias + j);
            v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
        }
        store4(p.dst, i, j, v);
    }
}
