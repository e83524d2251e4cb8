// What cudnn.cpp needs of NVIDIA's cudnn.h, versions 8 and 9, where that is not found. Enumerations
// are integers here. test_cudnn.py compares it with NVIDIA's.
#pragma once
#include <cstddef>

enum {
  CUDNN_STATUS_SUCCESS = 0,
  CUDNN_STATUS_NOT_INITIALIZED = 1001,
  CUDNN_STATUS_BAD_PARAM = 2000,
  CUDNN_STATUS_NOT_SUPPORTED = 3000,
  CUDNN_STATUS_EXECUTION_FAILED = 5000,
  CUDNN_DATA_FLOAT = 0,
  CUDNN_DATA_BFLOAT16 = 9,
  CUDNN_TENSOR_NHWC = 1,
  CUDNN_CROSS_CORRELATION = 1,
  CUDNN_DEFAULT_MATH = 0,
  CUDNN_TENSOR_OP_MATH = 1,
  CUDNN_FMA_MATH = 3,
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM = 0,
  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM = 1,
  CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1,
  CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1
};
typedef int cudnnStatus_t, cudnnDataType_t, cudnnTensorFormat_t, cudnnConvolutionMode_t;
typedef int cudnnMathType_t, cudnnConvolutionFwdAlgo_t, cudnnConvolutionBwdDataAlgo_t;
typedef int cudnnConvolutionBwdFilterAlgo_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct *cudnnConvolutionDescriptor_t;

extern "C" {
size_t cudnnGetVersion(void);
cudnnStatus_t cudnnCreate(cudnnHandle_t *);
cudnnStatus_t cudnnDestroy(cudnnHandle_t);
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t);
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t);
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t, cudnnDataType_t, int axes,
                                         const int sizes[], const int steps[]);
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t);
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t, cudnnDataType_t,
                                         cudnnTensorFormat_t, int axes, const int sizes[]);
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t);
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t, int axes,
                                              const int padding[], const int stride[],
                                              const int dilation[], cudnnConvolutionMode_t,
                                              cudnnDataType_t);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t, int);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t, cudnnMathType_t);
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t, size_t *);
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t, size_t *);
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t, size_t *);
cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t, const void *alpha, const cudnnTensorDescriptor_t, const void *x,
    const cudnnFilterDescriptor_t, const void *w, const cudnnConvolutionDescriptor_t,
    cudnnConvolutionFwdAlgo_t, void *workspace, size_t bytes, const void *beta,
    const cudnnTensorDescriptor_t, void *y);
cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t, const void *alpha, const cudnnFilterDescriptor_t, const void *w,
    const cudnnTensorDescriptor_t, const void *dy, const cudnnConvolutionDescriptor_t,
    cudnnConvolutionBwdDataAlgo_t, void *workspace, size_t bytes, const void *beta,
    const cudnnTensorDescriptor_t, void *dx);
cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t, const void *alpha, const cudnnTensorDescriptor_t, const void *x,
    const cudnnTensorDescriptor_t, const void *dy, const cudnnConvolutionDescriptor_t,
    cudnnConvolutionBwdFilterAlgo_t, void *workspace, size_t bytes, const void *beta,
    const cudnnFilterDescriptor_t, void *dw);
}
