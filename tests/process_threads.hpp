// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dirent.h>

namespace kvferry {

inline int threads_of_this_process() {
  int n = 0;
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* entry = readdir(folder)) n += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return n;
}

}  // namespace kvferry
