/* Takes `count` blocks of `block` elements, by their numbers, from each of `outer` groups of
   `length` blocks. A number below 0 counts from the end; one outside of the group is that of its
   nearest end, so that no other memory is read. */
static void embed(const int32_t *indices, int32_t count, int32_t outer, int32_t length,
                  int32_t block, const int8_t *input, int8_t *output)
{
    for (int32_t group = 0; group < outer; group++) {
        for (int32_t index = 0; index < count; index++) {
            int32_t from = indices[index];
            if (from < 0) {
                from = (from < -length) ? 0 : from + length;
            }
            if (from >= length) {
                from = length - 1;
            }
            memcpy(output, input + (group * length + from) * block, (size_t)block);
            output += block;
        }
    }
}
