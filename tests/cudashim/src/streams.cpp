// Streams, events, capture and graphs. Work is done when it is given to a stream, or, with
// the option `late`, when somebody waits for it, which is as late as a device could be.
#include <algorithm>

#include "driver.h"

static std::set<CUstream> streams;
static std::deque<Work> put_off_work;  // of the default stream

bool is_legacy(CUstream stream) {
  return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}
static bool is_blocking(CUstream stream) { return !(stream->flags & CU_STREAM_NON_BLOCKING); }

// Do the work of a stream up to a position.
static CUresult finish_until(CUstream stream, uint64_t position) {
  while (stream->done < position && !stream->queue.empty()) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    CUresult failed = work();
    ++stream->done;
    if (failed) return failed;
  }
  return stream->context->sticky;
}
static CUresult finish_all(bool only_blocking) {
  while (!put_off_work.empty()) {
    Work work = std::move(put_off_work.front());
    put_off_work.pop_front();
    if (CUresult failed = work()) return failed;
  }
  for (CUstream stream : streams)
    if (stream->context == current() && (!only_blocking || is_blocking(stream)))
      if (CUresult failed = finish_until(stream, stream->given)) return failed;
  return CUDA_SUCCESS;
}
CUresult finish(CUstream stream) {
  return stream ? finish_until(stream, stream->given) : finish_all(false);
}

static CUresult spoil(Capture &capture, CUresult error) {
  capture.invalid = true;
  return error;
}
CUresult unsafe(bool uses_legacy_stream) {
  for (CUstream stream : streams) {
    Capture *capture = stream->capture.get();
    if (!capture) continue;
    bool mine = capture->thread == std::this_thread::get_id();
    if (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
        (capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && mine)) {
      return spoil(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if (uses_legacy_stream && is_blocking(capture->origin)) {
      return spoil(*capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
  }
  return CUDA_SUCCESS;
}
// The default stream waits for blocking streams, which therefore must not be captured.
static CUresult enter_legacy() {
  for (CUstream stream : streams)
    if (stream->capture && is_blocking(stream->capture->origin)) {
      return spoil(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
  return finish_all(true);
}

CUresult put_off(Work work) {
  if (CUresult failed = enter_legacy()) return failed;
  put_off_work.push_back(std::move(work));
  return CUDA_SUCCESS;
}
CUresult enqueue(CUstream stream, CUgraphNodeType type, Work work) {
  if (is_legacy(stream)) {
    if (CUresult failed = enter_legacy()) return failed;
    return work();
  }
  KNOWN(stream);
  if (stream->context != current()) return CUDA_ERROR_INVALID_HANDLE;
  if (Capture *capture = stream->capture.get()) {
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream != capture->origin) capture->forked.insert(stream);
    auto node = std::make_shared<CUgraphNode_st>(CUgraphNode_st{type, std::move(work)});
    capture->graph->nodes.push_back(std::move(node));
    ++stream->given, ++stream->done;
    return CUDA_SUCCESS;
  }
  stream->queue.push_back(std::move(work));
  ++stream->given;
  return options.late ? CUDA_SUCCESS : finish(stream);
}
// For libcublas: `run` now or later, `drop` when it is never needed again.
API CUresult cudashim_enqueue(CUstream stream, CUresult (*run)(void *), void (*drop)(void *),
                              void *data) {
  ENTER();
  ++counters.launches;
  std::shared_ptr<void> kept(data, drop);
  if (CUresult failed = count_launch(current())) return failed;
  return enqueue(stream, CU_GRAPH_NODE_TYPE_KERNEL, [run, kept] {
    ++counters.products;
    return run(kept.get());
  });
}
// For libcublas, whose handles may be destroyed at any time: wait, but do not count it.
API CUresult cudashim_finish() {
  ENTER();
  UNSAFE();
  return finish(nullptr);
}
// Is [address, address + bytes) device memory? If not, the device fails as by an illegal access.
API CUresult cudashim_touch(const void *address, size_t bytes, const char *what) {
  ENTER();
  if (!bytes || is_device_memory(current(), CUdeviceptr(address), bytes)) return CUDA_SUCCESS;
  return fail(current(), CUDA_ERROR_ILLEGAL_ADDRESS,
              std::string(what) + " reads or writes " + std::to_string(bytes) + " bytes from " +
                  describe(CUdeviceptr(address)));
}

// Streams.
API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  ENTER();
  *stream = new CUstream_st{current(), flags};
  streams.insert(*stream);
  remember(*stream);
  return CUDA_SUCCESS;
}
API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
API CUresult cuStreamDestroy(CUstream stream) {
  ENTER(false);
  KNOWN(stream);
  if (stream->capture) stream->capture->invalid = true;
  finish(stream);
  CUresult sticky = stream->context->sticky;
  forget(stream);
  streams.erase(stream);
  delete stream;
  return sticky;
}
API CUresult cuStreamSynchronize(CUstream stream) {
  ENTER();
  if (is_legacy(stream)) {
    if (CUresult failed = enter_legacy()) return failed;
  } else {
    KNOWN(stream);
    if (stream->capture) return spoil(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (CUresult failed = finish(stream)) return failed;
  }
  ++counters.synchronisations;
  return CUDA_SUCCESS;
}
API CUresult cuStreamQuery(CUstream stream) {  // some progress is made, so that polling ends
  ENTER();
  if (is_legacy(stream)) return enter_legacy();
  KNOWN(stream);
  if (stream->capture) return spoil(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (CUresult failed = finish_until(stream, stream->done + 1)) return failed;
  return stream->queue.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
  ENTER();
  KNOWN(stream);
  *flags = stream->flags;
  return CUDA_SUCCESS;
}
API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
  ENTER();
  return enqueue(stream, CU_GRAPH_NODE_TYPE_HOST, [function, data] {
    function(data);
    return CUDA_SUCCESS;
  });
}

// Events.
API CUresult cuEventCreate(CUevent *event, unsigned flags) {
  ENTER();
  (void)flags;
  *event = new CUevent_st{current()};
  remember(*event);
  return CUDA_SUCCESS;
}
API CUresult cuEventDestroy(CUevent event) {
  ENTER(false);
  KNOWN(event);
  if (known(event->stream)) finish_until(event->stream, event->position);
  CUresult sticky = event->context->sticky;
  forget(event);
  delete event;
  return sticky;
}
API CUresult cuEventRecord(CUevent event, CUstream stream) {
  ENTER();
  KNOWN(event);
  auto stamp = [event] {
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    return CUDA_SUCCESS;
  };
  event->capture.reset();
  if (is_legacy(stream)) {
    event->stream = nullptr;
    return enqueue(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, stamp);
  }
  KNOWN(stream);
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  event->stream = stream;
  if (stream->capture) {
    event->capture = stream->capture;
    event->position = stream->given;
    return CUDA_SUCCESS;
  }
  event->position = stream->given + 1;
  return enqueue(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, stamp);
}
// A captured event brings the stream that waits for it into the capture.
static CUresult join(CUstream stream, CUevent event, std::shared_ptr<Capture> capture) {
  if (is_legacy(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capture && stream->capture != capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  if (stream != capture->origin) capture->forked.insert(stream);
  stream->capture = capture;
  if (known(event->stream) && event->position == event->stream->given)
    capture->forked.erase(event->stream);
  return CUDA_SUCCESS;
}
API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  ENTER();
  KNOWN(event);
  if (auto capture = event->capture.lock()) return join(stream, event, capture);
  if (!is_legacy(stream)) {
    KNOWN(stream);
    if (stream->capture) return spoil(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  }
  return enqueue(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                 [awaited = event->stream, position = event->position] {
                   return known(awaited) ? finish_until(awaited, position) : CUDA_SUCCESS;
                 });
}
static CUresult reach(CUevent event, uint64_t limit) {
  if (!event->capture.expired()) return CUDA_ERROR_CAPTURED_EVENT;
  if (!known(event->stream)) return CUDA_SUCCESS;
  return finish_until(event->stream, std::min(limit, event->position));
}
API CUresult cuEventSynchronize(CUevent event) {
  ENTER();
  KNOWN(event);
  UNSAFE();
  ++counters.synchronisations;
  return reach(event, UINT64_MAX);
}
API CUresult cuEventQuery(CUevent event) {
  ENTER();
  KNOWN(event);
  UNSAFE();
  if (!known(event->stream)) return CUDA_SUCCESS;
  if (CUresult failed = reach(event, event->stream->done + 1)) return failed;
  return event->stream->done >= event->position ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  ENTER();
  KNOWN(start);
  KNOWN(end);
  if (!start->time.tv_sec || !end->time.tv_sec) return CUDA_ERROR_NOT_READY;
  *milliseconds = (end->time.tv_sec - start->time.tv_sec) * 1e3 +
                  (end->time.tv_nsec - start->time.tv_nsec) * 1e-6;
  return CUDA_SUCCESS;
}
#undef cuEventElapsedTime
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}

// Capture.
API CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  ENTER();
  if (is_legacy(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  KNOWN(stream);
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = std::make_shared<Capture>();
  stream->capture->graph = std::make_unique<CUgraph_st>(CUgraph_st{current(), {}});
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  ++counters.captures;
  return CUDA_SUCCESS;
}
API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  ENTER();
  KNOWN(stream);
  *graph = nullptr;
  auto capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  for (CUstream other : streams)
    if (other->capture == capture) other->capture.reset();
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!capture->forked.empty()) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  remember(*graph = capture->graph.release());
  return CUDA_SUCCESS;
}
API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  ENTER();
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (is_legacy(stream)) return CUDA_SUCCESS;
  KNOWN(stream);
  if (stream->capture)
    *status = stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

// Graphs.
API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long) {
  ENTER();
  KNOWN(graph);
  remember(*exec = new CUgraphExec_st{graph->context, graph->nodes});
  return CUDA_SUCCESS;
}
API CUresult cuGraphUpload(CUgraphExec exec, CUstream) {
  ENTER();
  KNOWN(exec);
  return CUDA_SUCCESS;
}
API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  ENTER();
  KNOWN(exec);
  if (exec->context != current()) return CUDA_ERROR_INVALID_HANDLE;
  ++counters.graph_launches;
  if (CUresult failed = count_launch(current())) return failed;
  return enqueue(stream, CU_GRAPH_NODE_TYPE_GRAPH, [nodes = exec->nodes] {
    for (const auto &node : nodes)
      if (CUresult failed = node->work()) return failed;
    return CUDA_SUCCESS;
  });
}
API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *into, size_t *count) {
  ENTER();
  KNOWN(graph);
  size_t room = into ? *count : 0;
  if (!into) *count = graph->nodes.size();
  for (size_t i = 0; i < room; ++i)
    into[i] = i < graph->nodes.size() ? graph->nodes[i].get() : nullptr;
  return CUDA_SUCCESS;
}
API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  *type = node->type;
  return CUDA_SUCCESS;
}
template <class T> static CUresult destroy(T thing) {
  ENTER(false);
  KNOWN(thing);
  forget(thing);
  delete thing;
  return CUDA_SUCCESS;
}
API CUresult cuGraphExecDestroy(CUgraphExec exec) { return destroy(exec); }
API CUresult cuGraphDestroy(CUgraph graph) { return destroy(graph); }
