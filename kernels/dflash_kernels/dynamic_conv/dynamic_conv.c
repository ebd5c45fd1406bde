/* y[b][s][c] = sum over o <= s of (base[o][c] + dynamic[b][s][o][c / group]) * x[b][s - o][c], float32.
   A slot's kernels [size][width / group] lie `stride` floats after those of the slot before. */

void dynamic_conv(const float *x, const float *dynamic, const float *base, float *y, long batch, long slots,
                  long width, long size, long group, long stride, long of_row) {
    long groups = width / group;
    for (long b = 0; b < batch; b++, dynamic += of_row)
        for (long s = 0; s < slots; s++, x += width, y += width)
            for (long o = 0; o < size && o <= s; o++) {
                const float *kernel = dynamic + s * stride + o * groups, *before = x - o * width;
                for (long g = 0; g < groups; g++)
                    for (long c = g * group; c < (g + 1) * group; c++) {
                        float term = (base[o * width + c] + kernel[g]) * before[c];
                        y[c] = o ? y[c] + term : term;
                    }
            }
}
