// The decisions of a round between its graphs, one thread's work.
#include "core/ops/round.h"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/round_control.cuh"

namespace bolt::cuda {
namespace {

__global__ void end_level(RoundView v) {
  wait_for_earlier_kernels();
  RoundControl& c = *v.control;
  const Sampled draft = c.n_given > 0 ? c.given[c.n_drafts] : *v.level_draft;
  if (draft.id >= 0) {
    c.drafts[c.n_drafts++] = draft;
    c.product = mul_rn(c.product, draft.probability);
    if (drafts_on(draft, c.n_drafts, c.max_levels, c.product, c.stop_ids, c.n_stop_ids,
                  c.has_prices ? c.go_on : nullptr)) {
      *v.level_ids = draft.id;
      ++v.level_segment->first_position;
      ++v.level_spec->position;
      v.report->error = cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
      return;
    }
  }
  const int n_verified = c.has_prices ? n_worth(c.drafts, c.n_drafts, c.row_prices) : c.n_drafts;
  const int n_rows = n_verified + 1;
  v.window_segment->n_rows = v.window_segment->n_live = n_rows;
  for (int i = 0; i < n_verified; ++i) v.window_ids[i + 1] = c.drafts[i].id;
  for (int i = 0; i < c.n_drafts; ++i) v.report->drafts[i] = c.drafts[i];
  v.report->n_drafts = c.n_drafts;
  v.report->n_rows = n_rows;
  const cudaGraphExec_t window = c.windows[n_rows];
  const bool launches = !c.levels_only && window != nullptr;
  v.report->launched = launches;
  v.report->error = launches ? cudaGraphLaunch(window, cudaStreamGraphTailLaunch) : cudaSuccess;
}

}  // namespace

void launch_end_of_level(const RoundView& view, cudaStream_t stream) {
  launch(end_level, dim3(1), dim3(1), 0, stream, view);
}

}  // namespace bolt::cuda
