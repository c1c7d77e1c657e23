/* What calls the model on the device, here with standard input in the place of a sensor: reads the
   codes of one sample after the other, writes the codes of the outputs.

       cc -std=c99 -O2 -DINPUT=MODEL_IMAGE_SIZE -DOUTPUT=MODEL_LOGITS_SIZE -I out/microcontroller \
           examples/firmware.c out/microcontroller/model.c -o firmware
*/

#include <stdio.h>

#include "model.h"

static int8_t input[INPUT];
static int8_t output[OUTPUT];

int main(void)
{
    while (fread(input, sizeof input, 1, stdin) == 1) {
        model_run(input, output);
        fwrite(output, sizeof output, 1, stdout);
    }
    return 0;
}
