#include "harness.hpp"

namespace espalier::test {

std::unique_ptr<Communication> MakeCommunication(const Mesh& mesh, const std::vector<Channel>& channels,
                                                 MpiCommunicationOptions options) {
  return std::make_unique<MpiCommunication>(TheWorld(), mesh, channels, std::move(options));
}

}  // namespace espalier::test
