/* A chain of passes, client after client. `chain.py` calls it.

   The passes of one client follow each other, so that a map is read again soon after it was written, and the
   interpreter is left alone in between. Each pass is one of the other C files', for a single client. */

#include <stdint.h>
#include <time.h>

enum { TENSORS = 12 };

struct step { /* the same in chain.py */
    void (*pass)(const void *sizes, void *const *tensors);
    const void *sizes;
    int64_t bases[TENSORS], offsets[TENSORS]; /* of each tensor: base -1 is none; offsets are in bytes */
};

/* Run all steps for each client. A base is an address and the bytes from one client to the next. */
void chain_run(const struct step *steps, int64_t count, int64_t clients, char *const *addresses, const int64_t *strides)
{
    for (int64_t client = 0; client < clients; client++)
        for (const struct step *step = steps; step < steps + count; step++) {
            void *tensors[TENSORS];
            for (int i = 0; i < TENSORS; i++) {
                const int64_t base = step->bases[i];
                tensors[i] = base < 0 ? 0 : addresses[base] + client * strides[base] + step->offsets[i];
            }
            step->pass(step->sizes, tensors);
        }
}

/* A pass that adds the seconds since it was last called to one entry of `t[0]`; the first entry is the time of that
   call. */
static void read_clock(const int64_t *entry, double *seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double time = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    seconds[*entry] += time - seconds[0];
    seconds[0] = time;
}

void step_read_clock_float(const void *entry, void *const *t) { read_clock(entry, t[0]); }
void step_read_clock_double(const void *entry, void *const *t) { read_clock(entry, t[0]); }
