// adakv on the GPU: the scores are another selector's, and heads share what stays.

#include "methods/registry_cuda.h"
#include "methods/selectors/scores/scores.h"

namespace pith::cuda {

SelectorOnGpu make_adakv_on_gpu(const SelectorPlace& place) {
  const SelectorRow scores = adakv_scores(place.options.as<AdaKvOptions>().by);
  const MethodOptions theirs = scores.read({scores.info.name, {}});
  SelectorOnGpu selector =
      find_device_selector(scores.info.name)->make({theirs, place.budget, place.site});
  selector.shared = true;
  return selector;
}

}  // namespace pith::cuda
