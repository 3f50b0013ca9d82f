#include "checkpoint/transfer/shards.hpp"

#include <utility>

#include "espalier/comm/pack.hpp"

namespace espalier {

Shards::Shards(const Metadata& metadata, const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local,
               const Mesh& mesh, World& world)
    : metadata_(metadata), tensors_(tensors), mesh_(mesh), rank_(world.Rank()), pieces_(PlanPieces(tensors, mesh)) {
  CHECK(mesh.Ranks() == world.Size(), "a mesh of {} ranks in a world of {}", mesh.Ranks(), world.Size());
  for (const LocalTensor& tensor : local) local_[tensor.tensor->name] = &tensor;
}

std::vector<ShardPiece> Shards::Own() const {
  std::vector<ShardPiece> own;
  for (const Piece& piece : pieces_) {
    if (piece.writer != rank_) continue;
    const StateTensor& tensor = tensors_[static_cast<size_t>(piece.tensor)];
    const auto data = local_.find(tensor.name);
    CHECK(data != local_.end() && (data->second->data != nullptr || data->second->read),
          "rank {} holds {} but did not pass it", rank_, tensor.name);
    own.push_back({tensor.StoredName(), tensor.StoredShape(), piece.box, data->second->data, data->second->read,
                   tensor.type.dtype, data->second->crc});
  }
  return own;
}

Manifest Shards::Assemble(const std::string& id, const std::vector<std::string>& reports) const {
  Manifest manifest{id, metadata_, mesh_.Ranks(), mesh_.ToString(), {}, {}};
  for (std::string* text : {&manifest.metadata.version, &manifest.metadata.git_hash})
    if (text->empty()) *text = "unknown";
  std::vector<size_t> stored;  // by tensor: its index in the manifest, which the parts of one stored tensor share
  std::map<std::string_view, size_t> places;
  for (const StateTensor& tensor : tensors_) {
    const auto [place, fresh] = places.emplace(tensor.StoredName(), manifest.tensors.size());
    if (fresh) manifest.tensors.push_back({tensor.StoredName(), tensor.StoredShape(), {}, tensor.type.dtype});
    stored.push_back(place->second);
  }
  AddShards(reports, stored, manifest);
  return manifest;
}

void Shards::AddShards(const std::vector<std::string>& packed, const std::vector<size_t>& stored,
                       Manifest& manifest) const {
  std::vector<ShardReport> reports;
  std::vector<int> file_of_rank(packed.size(), -1);
  std::vector<size_t> next(packed.size(), 0);  // by rank: its next shard
  for (size_t rank = 0; rank < packed.size(); ++rank) {
    const ShardReport& report = reports.emplace_back(Unpack<ShardReport>(packed[rank]));
    if (report.pieces.empty()) continue;
    file_of_rank[rank] = static_cast<int>(manifest.files.size());
    manifest.files.push_back({ShardName(static_cast<int>(rank)), report.bytes, report.crc});
  }
  for (const Piece& piece : pieces_) {
    const auto writer = static_cast<size_t>(piece.writer);
    CHECK(next[writer] < reports[writer].pieces.size(), "rank {} did not report {}", writer,
          tensors_[static_cast<size_t>(piece.tensor)].name);
    const ShardReport::Place& place = reports[writer].pieces[next[writer]++];
    manifest.tensors[stored[static_cast<size_t>(piece.tensor)]].pieces.push_back(
        {file_of_rank[writer], piece.box, place.offset, place.crc});
  }
}

}  // namespace espalier
