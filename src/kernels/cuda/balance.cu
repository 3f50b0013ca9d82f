#include "kernels/cuda/runtime/kernels.hpp"
