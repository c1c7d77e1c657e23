/* ---- copy.h -------------------------------------------------------------- */
/* Elements of a grid, moved: rows, and a run of elements in each row. */
typedef struct {
    int32_t rows;
    int32_t axes;
    int32_t lengths[@AXES@];
    int32_t input_strides[@AXES@], output_strides[@AXES@];
    int32_t length, input_step, output_step;
    int32_t input_start, output_start;
} copy_params;
/* ---- copy.c -------------------------------------------------------------- */
/* Moves elements from places at equal distances to places at equal distances. */
static void copy(const copy_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t row = 0; row < p->rows; row++) {
        const int8_t *from = input + p->input_start +
                             strided_offset(row, p->lengths, p->input_strides, p->axes);
        int8_t *to = output + p->output_start +
                     strided_offset(row, p->lengths, p->output_strides, p->axes);
        if (p->input_step == 1 && p->output_step == 1) {
            memcpy(to, from, (size_t)p->length);
            continue;
        }
        for (int32_t index = 0; index < p->length; index++) {
            to[index * p->output_step] = from[index * p->input_step];
        }
    }
}
/* ---- embed.c ------------------------------------------------------------- */
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
/* ---- gather.c ------------------------------------------------------------ */
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
