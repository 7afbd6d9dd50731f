#pragma once

#include <gtest/gtest.h>

#include <string>

#include "pith/error.h"

namespace pith::test {

/// f() is refused with that code, and the message has the word.
template <class F>
void refused(ErrorCode code, const std::string& word, const F& f) {
  try {
    f();
    ADD_FAILURE() << "taken, and should not be: " << word;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}

}  // namespace pith::test
