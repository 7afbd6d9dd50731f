#pragma once
// The files of the page, as they are compiled in from src/serve/page/.

#include <span>
#include <string_view>

namespace pith::serve {

struct PageFile {
  std::string_view name, type, text;
};

std::span<const PageFile> page_files();

}  // namespace pith::serve
