/* Passes in the form in which a chain calls them: all tensors in one list, in the order of the pass's arguments. */

#define STEP(name, real, ...)                                                                                      \
    void step_##name##_##real(const void *sizes, void *const *t) { name##_##real(sizes, __VA_ARGS__); }
#define STEPS(name, ...)                                                                                           \
    STEP(name, float, __VA_ARGS__)                                                                                 \
    STEP(name, double, __VA_ARGS__)
