/* Turns the pairs (i, i + half) of the heads of each row by the row's angles; float32. */

void rope(const float *x, const float *cosines, const float *sines, float *y, long rows, long heads, long half) {
    for (long n = 0; n < rows; n++, cosines += half, sines += half)
        for (long h = 0; h < heads; h++, x += 2 * half, y += 2 * half)
            for (long i = 0; i < half; i++) {
                float first = x[i], second = x[i + half];
                y[i] = first * cosines[i] - second * sines[i];
                y[i + half] = second * cosines[i] + first * sines[i];
            }
}
