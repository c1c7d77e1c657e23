/* Takes `count` blocks of `block` elements, by their numbers, from each of `outer` groups of
   `length` blocks. */
static void gather(const int32_t *indices, int32_t count, int32_t outer, int32_t length,
                   int32_t block, const int8_t *input, int8_t *output)
{
    for (int32_t group = 0; group < outer; group++) {
        for (int32_t index = 0; index < count; index++) {
            memcpy(output, input + (group * length + indices[index]) * block, (size_t)block);
            output += block;
        }
    }
}
