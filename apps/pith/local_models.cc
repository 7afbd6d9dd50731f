// pith list and pith rm: the models that lie in the user's folder.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "args.h"
#include "console.h"
#include "engine.h"
#include "pith/error.h"
#include "pith/nearest.h"
#include "pith_tools/catalogue.h"
#include "real_models.h"
#include "report.h"

namespace pith::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTokens = 4096;  // of the column of the cache's bytes

/// A file or folder of the models' folder. Its name is what -m takes for a model of the catalogue,
/// else the file's.
struct LocalModel {
  std::string name;
  fs::path path;
  uint64_t bytes = 0;
};

uint64_t bytes_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return fs::file_size(path, ignored);
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path, ignored))
    if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  return bytes;
}

std::string name_of(const fs::path& path) {
  for (const KnownModel& known : known_models())
    if (path.filename() == known.file) return std::string(known.name);
  return path.filename().string();
}

std::vector<LocalModel> local_models() {
  std::vector<LocalModel> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(models_folder(), ignored)) {
    const fs::path& path = entry.path();
    const bool model = entry.is_directory(ignored) ? fs::exists(path / "config.json", ignored)
                                                   : path.extension() == ".gguf";
    if (model) out.push_back({name_of(path), path, bytes_of(path)});
  }
  std::ranges::sort(out, {}, &LocalModel::name);
  return out;
}

/// Bytes of the exact cache in f16; 0 for a file that is no model.
size_t cache_bytes(const LocalModel& model) {
  try {
    return kTokens * read_model_config(model.path).bytes_per_token(DType::kF16);
  } catch (const Error&) {
    return 0;
  }
}

int list(bool json) {
  const auto models = local_models();
  if (json) {
    Json entries = Json::array();
    for (const LocalModel& m : models)
      entries.push_back({{"name", m.name},
                         {"path", m.path.string()},
                         {"bytes", m.bytes},
                         {"cache_bytes_at_4096", cache_bytes(m)}});
    print_json({{"folder", models_folder().string()}, {"models", entries}});
    return 0;
  }
  if (models.empty()) {
    say(fmt::format("pith: no model lies in {}; 'pith pull' lists those that can be fetched",
                    models_folder().string()));
    return 0;
  }
  Table table({"name", "size", "KV at 4096", "path"}, {3});
  for (const LocalModel& m : models) {
    const size_t cache = cache_bytes(m);
    table.add({visible(m.name), human_bytes(static_cast<double>(m.bytes)),
               cache > 0 ? human_bytes(static_cast<double>(cache)) : "not a model",
               visible(m.path.string())});
  }
  write_out(table.text());
  return 0;
}

/// The model of each name. All are looked at before any is removed.
std::vector<LocalModel> to_remove(const std::vector<std::string>& names) {
  const auto models = local_models();
  std::vector<std::string> known, absent, folders;
  for (const LocalModel& m : models) known.push_back(m.name);
  std::vector<LocalModel> out;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(models, name, &LocalModel::name);
    std::error_code ignored;
    if (found == models.end())
      absent.push_back(name);
    else if (fs::is_directory(fs::symlink_status(found->path, ignored)))
      folders.push_back(found->path.string());
    else if (std::ranges::find(out, name, &LocalModel::name) == out.end())
      out.push_back(*found);
  }
  if (!absent.empty())
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} {} not in {}{}, so nothing was removed; there {}: {}",
                            fmt::join(absent, ", "), absent.size() == 1 ? "is" : "are",
                            models_folder().string(), did_you_mean(absent[0], known),
                            known.size() == 1 ? "is" : "are",
                            known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
  if (!folders.empty())
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: a folder of files, which 'pith rm' leaves alone; nothing was "
                            "removed. 'rm -r' removes it",
                            fmt::join(folders, ", ")));
  return out;
}

int remove(const std::vector<std::string>& names) {
  for (const LocalModel& model : to_remove(names)) {
    std::error_code failed;
    fs::remove(model.path, failed);
    if (failed)
      throw Error(ErrorCode::kIo,
                  fmt::format("{} cannot be removed: {}", model.path.string(), failed.message()));
    say(fmt::format("pith: removed {} ({}), {}", model.name, model.path.string(),
                    human_bytes(static_cast<double>(model.bytes))));
  }
  return 0;
}

}  // namespace

void add_local_models(CLI::App& root, Action& action) {
  auto json = std::make_shared<bool>(false);
  CLI::App* list_app = root.add_subcommand("list", "List the models that are here");
  add_json_option(*list_app, *json);
  list_app->footer(
      "The models' folder is $PITH_MODELS, or else $XDG_CACHE_HOME/pith/models, or else\n"
      "~/.cache/pith/models. 'KV at 4096' is the exact cache of 4096 tokens in f16.\n"
      "'pith pull' lists what can be fetched.\n");
  list_app->callback([json, &action] { action = [json] { return list(*json); }; });

  auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* rm = root.add_subcommand("rm", "Remove models that are here");
  rm->add_option("names", *names, "Models by the names of 'pith list'")
      ->required()
      ->type_name("NAME");
  rm->footer("If one name is not there, none is removed.\n");
  rm->callback([names, &action] { action = [names] { return remove(*names); }; });
}

}  // namespace pith::cli
