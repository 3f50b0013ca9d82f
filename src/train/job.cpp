#include "train/job.hpp"

#include <optional>

#include "espalier/util/agreed_error.hpp"
#include "espalier/util/message_of.hpp"

namespace espalier {

ExitStatus RunJob(const Journey& journey, const std::function<void()>& when_started) {
  if (!StartedByLauncher()) {
    SelfWorld world;
    Parts parts;
    return journey(world, nullptr, parts);
  }
  std::optional<AgreedError> agreed;
  {
    MpiWorld world;
    if (when_started) when_started();
    Parts parts;  // outside of the try block: see Parts
    try {
      return journey(world, &world, parts);
    } catch (const AgreedError& error) {
      agreed = error;  // all ranks throw it: they end MPI together, and then report it
    } catch (const UserError& error) {
      world.Fail(error.what(), error.status());
    } catch (const std::exception& error) {
      world.Fail(MessageOf(error));
    }
  }
  throw *agreed;
}

}  // namespace espalier
