// An error that all ranks of a job throw together.
#pragma once

#include "espalier/util/error.hpp"

namespace espalier {

/// A UserError that every rank throws at the same place with the same messages, since they have agreed on it. Any other
/// error of one rank would leave the others waiting, so it ends the job (World::Fail).
class AgreedError : public UserError {
 public:
  using UserError::UserError;
};

}  // namespace espalier
