// Marks functions that run on the host and, under nvcc, on the device.
#pragma once

#ifdef __CUDACC__
#define ESPALIER_HOST_DEVICE __host__ __device__
#else
#define ESPALIER_HOST_DEVICE
#endif
