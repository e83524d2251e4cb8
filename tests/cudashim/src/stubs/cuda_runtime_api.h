// What NVIDIA's cudnn.h needs of the runtime's header, which wants a whole toolkit.
#pragma once
#include <stddef.h>
#include <library_types.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;
